"""The limits of SQS, each stated once. The constraint table (`aws/constraints/sqs.py`), the service and the store import them."""

QUEUE_NAME_MAX_CHARACTERS = 80
LABEL_MAX_CHARACTERS = 80  # of a permission
ACTIONS_MAX = 7  # in one AddPermission
PAGE_MAX = 1000  # queues in one response of a list operation

# Attributes of a queue
DELAY_MAX_S = 900
MESSAGE_MIN_BYTES, MESSAGE_MAX_BYTES = 1024, 1_048_576  # of MaximumMessageSize
RETENTION_MIN_S, RETENTION_MAX_S = 60, 1_209_600
WAIT_MAX_S = 20
VISIBILITY_MAX_S = 43_200
KMS_REUSE_MIN_S, KMS_REUSE_MAX_S = 60, 86_400
RECEIVE_COUNT_MAX = 1000  # maxReceiveCount of a RedrivePolicy
SOURCE_QUEUES_MAX = 10  # sourceQueueArns of a RedriveAllowPolicy

# Messages
BATCH_MAX_ENTRIES = 10
BATCH_ENTRY_ID_MAX_CHARACTERS = 80
BATCH_MAX_BYTES = 1_048_576  # of all messages in one SendMessageBatch
RECEIVE_MAX_MESSAGES = 10  # in one ReceiveMessage
IN_FLIGHT_MAX = 120_000  # messages of one queue
DEDUPLICATION_MS = 300_000  # a deduplication id and a receive attempt are remembered this long
ATTRIBUTES_MAX = 10  # of one message
ATTRIBUTE_NAME_MAX_CHARACTERS = 256
ATTRIBUTE_TYPE_MAX_CHARACTERS = 256
FIFO_ID_MAX_CHARACTERS = 128  # of a message group id or a deduplication id

# Purges and message move tasks
PURGE_INTERVAL_S = 60
MOVE_RATE_MAX = 500  # messages a second
MOVE_TASKS_MAX = 10  # listed for one source queue, and stored for it
