#!/usr/bin/env bash
# RIoTBench's PRED over one, two and four servers, each in a network namespace of its own with a part of a core, and
# linked by MQTT through mosquitto: the most events a second at 100 ms (figure 12 of EdgeWise, on one machine).
#
#   cargo build --release && sudo bench/distributed/pred.sh [SERVERS ...]
#
# Two servers: one classifies, the other predicts; both read each event. Four: two such pairs, each of half of the
# sensors. Results are compared with those of one server, or nothing is measured; of four servers without the error, for
# which "the last mean of any sensor" is one of their own half. A line of JSON for each number of servers, and the
# ratios.
#
# CORE_PERCENT is each server's part of a core, 10. All of them, the broker and the generator must fit the machine, or
# the figure measures that. SECONDS_EACH is 10 for each rate tried, RUNS 3, BOUND_MS 100. Needs root, iproute2, cgroup
# v1 with `cpu` (or v2), mosquitto and python3. All that it makes is removed at its end.
set -euo pipefail
cd "$(dirname "$0")/../.."
RIVULET=$(realpath "${RIVULET:-target/release/rivulet}")
CORE_PERCENT=${CORE_PERCENT:-10} BOUND_MS=${BOUND_MS:-100} SECONDS_EACH=${SECONDS_EACH:-10} RUNS=${RUNS:-3}
COUNTS=("$@")
[ ${#COUNTS[@]} -gt 0 ] || COUNTS=(1 2 4)
[ "$(id -u)" = 0 ] || { echo "network namespaces need root: sudo $0" >&2; exit 1; }
for program in ip mosquitto python3; do
  command -v "$program" >/dev/null || { echo "$program is missing" >&2; exit 1; }
done
NAME=rvlt$$ PERIOD_US=10000 NET=10.37.0
QUOTA_US=$((PERIOD_US * CORE_PERCENT / 100))
WORK=$(mktemp -d)
CGROUP=/sys/fs/cgroup/cpu,cpuacct
[ -d "$CGROUP" ] || CGROUP=/sys/fs/cgroup/cpu
[ -d "$CGROUP" ] || CGROUP=/sys/fs/cgroup
PIDS=()
stop() { # stops what was started since the last time, and waits for it
  local pid
  for pid in "${PIDS[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${PIDS[@]}"; do timeout 20 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true; done
  PIDS=()
}
clean() {
  set +e
  stop
  for i in 0 1 2 3 4; do ip netns del "$NAME-$i"; rmdir "$CGROUP/$NAME-$i"; done 2>/dev/null
  ip link del "$NAME" 2>/dev/null
  rm -rf "$WORK"
}
trap clean EXIT

ip link add "$NAME" type bridge
ip link set "$NAME" up
for i in 0 1 2 3 4; do
  ip netns add "$NAME-$i"
  ip link add "v$i" netns "$NAME-$i" type veth peer name "$NAME.$i"
  ip link set "$NAME.$i" master "$NAME" up
  ip -n "$NAME-$i" addr add "$NET.$((i + 1))/24" dev "v$i"
  ip -n "$NAME-$i" link set "v$i" up
  ip -n "$NAME-$i" link set lo up
done
cat >"$WORK/broker.conf" <<CONF
listener 1883 $NET.1
allow_anonymous true
set_tcp_nodelay true
log_type subscribe
max_queued_messages 0
CONF
ip netns exec "$NAME-0" mosquitto -c "$WORK/broker.conf" >"$WORK/broker.log" 2>&1 &
BROKER=$!
trap 'kill "$BROKER" 2>/dev/null; clean' EXIT

views() { sed '/^INSERT INTO/,$d; /^CREATE SOURCE/d; s#{folder}/##' crates/rivulet-bench/riot/pred.sql; }
script() { # TOPIC: the source, the sink and the views of PRED
  cat <<SQL
CREATE SOURCE city (at TIMESTAMP EVENT TIME, number BIGINT, sent TIMESTAMP, source TEXT, longitude TEXT,
  latitude TEXT, temperature REAL, humidity REAL, light REAL, dust REAL, airquality_raw REAL)
  FROM 'mqtt:$1' FORMAT JSON WITH (lateness => INTERVAL '0 seconds', idle_timeout => INTERVAL '1 second');
CREATE SINK results TO 'mqtt:results' FORMAT JSON;
SQL
  views
}
CLASS="SELECT concat(meta, ',DTC,obsVal:', observed, ',RES:', class) AS text FROM predicted"
VALUE="SELECT concat(meta, ',MLR,obsVal:', observed, ',RES:', value, ',ERROR:', error) AS text FROM errors"
server() { # NUMBER TOPIC QUERY: a server in its namespace and with its part of a core, that runs this query
  local i=$1 folder="$WORK/$1" url="http://127.0.0.1:8080"
  rm -rf "$folder"
  mkdir -p "$folder/data/files" "$CGROUP/$NAME-$i"
  cp crates/rivulet-bench/riot/air_*.json "$folder/data/files"
  if [ -e "$CGROUP/$NAME-$i/cpu.cfs_quota_us" ]; then
    echo "$PERIOD_US" >"$CGROUP/$NAME-$i/cpu.cfs_period_us"
  fi
  ( echo "$BASHPID" >"$CGROUP/$NAME-$i/cgroup.procs"
    cd "$folder"
    exec ip netns exec "$NAME-$i" "$RIVULET" serve --data-dir data --workers 1 --log-level warn \
      --mqtt-broker-url "mqtt://$NET.1:1883" --set "hosts.allow=$NET.1" \
      --set "mqtt.broker.client_id=pred-$run-$count-$i" ) \
    >"$folder/log" 2>&1 &
  PIDS+=($!)
  script "$2" >"$folder/pred.sql"
  echo "CREATE QUERY pred AS INSERT INTO results $3;" >>"$folder/pred.sql"
  for _ in $(seq 100); do
    ip netns exec "$NAME-$i" "$RIVULET" status --server "$url" >/dev/null 2>&1 && break
    sleep 0.2
  done
  ip netns exec "$NAME-$i" "$RIVULET" sql --server "$url" "$folder/pred.sql" >"$folder/sql.log" 2>&1 ||
    { cat "$folder/sql.log" "$folder/log" >&2; exit 1; }
  for _ in $(seq 100); do # until it reads
    grep -q "pred-$run-$count-$i.* city/" "$WORK/broker.log" && break
    sleep 0.2
  done
  # Starting is not measured: the quota holds from here on.
  if [ -e "$CGROUP/$NAME-$i/cpu.cfs_quota_us" ]; then
    echo "$QUOTA_US" >"$CGROUP/$NAME-$i/cpu.cfs_quota_us"
  else
    echo "$QUOTA_US $PERIOD_US" >"$CGROUP/$NAME-$i/cpu.max"
  fi
}
servers() { # COUNT
  case $1 in
    1) server 1 'city/+' "$CLASS UNION ALL $VALUE" ;;
    2) server 1 'city/+' "$CLASS"; server 2 'city/+' "$VALUE" ;;
    4) server 1 city/0 "$CLASS"; server 2 city/0 "$VALUE"; server 3 city/1 "$CLASS"; server 4 city/1 "$VALUE" ;;
    *) echo "1, 2 or 4 servers, not $1" >&2; exit 1 ;;
  esac
}
for run in $(seq "$RUNS"); do
  for count in "${COUNTS[@]}"; do
    servers "$count"
    ip netns exec "$NAME-0" python3 bench/distributed/pred.py "$NET.1" crates/rivulet-bench/riot/sys.senml \
      "$WORK/golden" "$count" "$run" "$CORE_PERCENT" "$SECONDS_EACH" "$BOUND_MS" | tee -a "$WORK/lines"
    stop
  done
done
python3 - "$WORK/lines" <<'PY'
import json, statistics, sys
rates = {}
for line in open(sys.argv[1]):
    line = json.loads(line)
    rates.setdefault(line["servers"], []).append(line["input_per_s"])
medians = {servers: statistics.median(of) for servers, of in rates.items()}
for servers, of in sorted(medians.items()):
    times = of / max(1, medians[min(medians)])
    print(f"{servers} servers: {of:.0f} events/s (of {sorted(rates[servers])}), {times:.2f} times {min(medians)}")
PY
