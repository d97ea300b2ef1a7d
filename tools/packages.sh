#!/bin/sh
# Install the Debian packages that a make goal needs and this machine lacks. Say first which ones, and what for.
#     tools/packages.sh GOAL PACKAGE...
set -eu
PATH=$PATH:/usr/sbin:/sbin  # dockerd is there, and only root has it on PATH
goal=$1
shift
missing= reasons=
for package; do
  case $package in
    python3-venv)   has() { "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null; }; reason="the virtual environment in .venv" ;;
    tmux)           has() { command -v tmux; };         reason="tests of real terminals" ;;
    docker.io)      has() { command -v dockerd; };      reason="an engine that runs containers" ;;
    busybox-static) has() { command -v busybox; };      reason="the images of those containers" ;;
    nodejs)         has() { command -v node; };         reason="the AWS CDK" ;;
    npm)            has() { command -v npm; };          reason="the installation of the CDK" ;;
    prometheus)     has() { command -v prometheus; };   reason="scrapes of the page /metrics" ;;
    iproute2)       has() { command -v ip; };           reason="networks of several machines" ;;
    openmpi-bin)    has() { command -v mpirun; };       reason="the MPI examples" ;;
    slurm-wlm)      has() { command -v slurmctld; };    reason="the scheduler that Batch is compared with" ;;
    chromium)       has() { command -v chromium; };     reason="tests of the web console in a browser" ;;
    redis-server)   has() { command -v redis-server; }; reason="the queue that SQS is compared with" ;;
    *) echo "packages.sh: $package is not in the list" >&2; exit 2 ;;
  esac
  if ! has >/dev/null; then
    missing="$missing $package"
    reasons="$reasons${reasons:+, }$package ($reason)"
  fi
done
[ -n "$missing" ] || exit 0

root=
[ "$(id -u)" = 0 ] || root=sudo
cat <<EOF
make $goal needs Debian packages that this machine lacks: $reasons.
They are installed with apt-get now.
EOF
$root apt-get update -q
# Tests and benchmarks start their own programs, so the services of these packages are not started.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap '$root rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
  $root chmod 755 $policy
fi
# The list is split into words on purpose.
$root apt-get install -y -q --no-install-recommends $missing
