"""The limits of SQS. The constraint table (`aws/constraints/sqs.py`), the service and the store import them from here."""

QUEUE_NAME_MAX_CHARACTERS = 80
LABEL_MAX_CHARACTERS = 80  # length of the label of a permission
ACTIONS_MAX = 7  # actions in one AddPermission request
PAGE_MAX = 1000  # queues in one response of a list operation

# Attributes of a queue
DELAY_MAX_S = 900
MESSAGE_MIN_BYTES, MESSAGE_MAX_BYTES = 1024, 1_048_576  # limits of the attribute MaximumMessageSize
RETENTION_MIN_S, RETENTION_MAX_S = 60, 1_209_600
WAIT_MAX_S = 20
VISIBILITY_MAX_S = 43_200
KMS_REUSE_MIN_S, KMS_REUSE_MAX_S = 60, 86_400
RECEIVE_COUNT_MAX = 1000  # largest maxReceiveCount of a RedrivePolicy
SOURCE_QUEUES_MAX = 10  # number of sourceQueueArns in a RedriveAllowPolicy

# Messages
BATCH_MAX_ENTRIES = 10
BATCH_ENTRY_ID_MAX_CHARACTERS = 80
BATCH_MAX_BYTES = 1_048_576  # total size of all messages in one SendMessageBatch
RECEIVE_MAX_MESSAGES = 10  # messages in one ReceiveMessage response
RECEIVE_MAX_BYTES = 1_048_576  # bytes of these messages; the response may have fewer messages than requested
IN_FLIGHT_MAX = 120_000  # messages of one queue that are in flight
DEDUPLICATION_MS = 300_000  # deduplication ids and receive attempt ids are stored for this time
ATTRIBUTES_MAX = 10  # message attributes of one message
ATTRIBUTE_NAME_MAX_CHARACTERS = 256
ATTRIBUTE_TYPE_MAX_CHARACTERS = 256
FIFO_ID_MAX_CHARACTERS = 128  # length of a message group id or a deduplication id

# Purges and message move tasks
PURGE_INTERVAL_S = 60
MOVE_RATE_MAX = 500  # messages per second
MOVE_TASKS_MAX = 10  # move tasks that are stored and listed for one source queue
