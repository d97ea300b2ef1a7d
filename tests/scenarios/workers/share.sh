# A child of an array job. It reads the list in S3, computes its share as in AWS's examples of array jobs, and writes it to
# s3://pipeline-data/results/STEP/INDEX/JOB: the start, the end, the GPU, and then one item per line. Only curl and sed: 211 of them run.
#
# While the file GATE exists, a child whose index is in HELD ("80-99") waits instead. The child WITH_HELPER runs share.py.
set -eu
step=$CORRAL_PIPELINE_STEP index=${AWS_BATCH_JOB_ARRAY_INDEX:-0} held=${HELD:-1-0}
read -r start _ < /proc/uptime
if [ -e "${GATE:-}" ] && [ "$index" -ge "${held%-*}" ] && [ "$index" -le "${held#*-}" ]; then
  exec sleep 600
elif [ "$index" = "${WITH_HELPER:-}" ]; then
  exec "$PYTHON" "${0%.sh}.py"
fi

set -- $(curl -sSf -H "Authorization: $AWS_CONTAINER_AUTHORIZATION_TOKEN" "$AWS_CONTAINER_CREDENTIALS_FULL_URI" |
  sed 's/.*"AccessKeyId":"\([^"]*\)","SecretAccessKey":"\([^"]*\)","Token":"\([^"]*\)".*/\1:\2 \3/')
request() {
  curl -sSf --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$1" -H "x-amz-security-token: $2" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
    --url "$AWS_ENDPOINT_URL/$3" ${4+-T "$4"}
}

request "$1" "$2" "${LIST_FILE_S3_PATH#s3://}" > list
total=$(grep -c . list)
from=$((total * index / ARRAY_SIZE)) to=$((total * (index + 1) / ARRAY_SIZE))
[ "$to" -gt "$from" ] && sed -n "$((from + 1)),${to}p" list > items
read -r end _ < /proc/uptime
{ echo "$start $end ${CUDA_VISIBLE_DEVICES:-}"; cat items; } > result
request "$1" "$2" "pipeline-data/results/$step/$index/$AWS_BATCH_JOB_ID" result
