# A child of an array job. It reads the list in S3, computes its share as in AWS's examples of array jobs, and writes it to
# s3://pipeline-data/results/STEP/INDEX/JOB: the start, the end and the GPU, and then one item per line. Hundreds of children run, so
# they start no programs but curl.
#
# While the file GATE exists, a child whose index is in HELD ("16-23") waits instead. The child WITH_HELPER runs share.py.
set -eu
index=${AWS_BATCH_JOB_ARRAY_INDEX:-0} held=${HELD:-1-0}
read -r start _ < /proc/uptime
if [ -e "${GATE:-}" ] && [ "$index" -ge "${held%-*}" ] && [ "$index" -le "${held#*-}" ]; then
  exec sleep 600
elif [ "$index" = "${WITH_HELPER:-}" ]; then
  exec "$PYTHON" "${0%.sh}.py"
fi

member() {  # of the credentials
  value=${credentials#*\"$1\":\"}
  value=${value%%\"*}
}
credentials=$(curl -sSf -H "Authorization: $AWS_CONTAINER_AUTHORIZATION_TOKEN" "$AWS_CONTAINER_CREDENTIALS_FULL_URI")
member AccessKeyId && user=$value && member SecretAccessKey && user=$user:$value && member Token && token=$value
request() {
  path=$1 && shift
  curl -sSf --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$user" -H "x-amz-security-token: $token" \
    -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@" "$AWS_ENDPOINT_URL/$path"
}

request "${LIST_FILE_S3_PATH#s3://}" > list
total=0
while read -r item; do total=$((total + 1)); done < list
from=$((total * index / ARRAY_SIZE)) to=$((total * (index + 1) / ARRAY_SIZE)) at=0
read -r end _ < /proc/uptime
echo "$start $end ${CUDA_VISIBLE_DEVICES:-}" > result
while read -r item; do
  if [ "$at" -ge "$from" ] && [ "$at" -lt "$to" ]; then echo "$item"; fi
  at=$((at + 1))
done < list >> result
request "pipeline-data/results/$CORRAL_PIPELINE_STEP/$index/$AWS_BATCH_JOB_ID" -T result
