#!/usr/bin/env bash
# LF Edge eKuiper: one rule for each user on one shared stream, over one MQTT connection, which is its cheapest form.
#
#   git clone https://github.com/lf-edge/ekuiper && (cd ekuiper && go build -o kuiperd ./cmd/kuiperd)
#   KUIPERD=ekuiper/kuiperd KUIPER_ETC=ekuiper/etc bench/peers/ekuiper.sh [QUERIES [SECONDS]]
#
# The same load on Rivulet: rivulet bench many --shared-topic --queries QUERIES --duration SECONDSs
cd "$(dirname "$0")/../.." && source bench/peers/common.sh
QUERIES=${1:-5000} SECONDS_SENT=${2:-20} PORT=${PORT:-19081}
start_generator

mkdir -p "$WORK"/{data,log,plugins/{sources,sinks,functions,portable,wasm}}
cp -r "${KUIPER_ETC:?the folder etc of eKuiper}" "$WORK/etc"
KUIPERD=$(realpath "${KUIPERD:?the program kuiperd}")
(
  cd "$WORK"
  exec env KuiperBaseKey="$WORK" KUIPER__BASIC__RESTPORT="$PORT" KUIPER__BASIC__PORT=$((PORT + 1)) KUIPER__BASIC__LOGLEVEL=error \
    KUIPER__BASIC__CONSOLELOG=false KUIPER__BASIC__PROMETHEUS=false "$KUIPERD"
) >"$WORK/log/out" 2>&1 &
PEER=$!
for _ in $(seq 100); do curl -sf "http://127.0.0.1:$PORT/ping" && break || sleep 0.2; done
kill -0 "$PEER" || { tail -5 "$WORK/log/out" >&2; exit 1; }

post() { curl -sS -X "$1" -H 'Content-Type: application/json' "http://127.0.0.1:$PORT/$2" -d "$3" >>"$WORK/log/posts"; echo >>"$WORK/log/posts"; }
post POST connections "{\"id\":\"bench\",\"typ\":\"mqtt\",\"props\":{\"server\":\"tcp://$BROKER\",\"qos\":0}}"
post PUT metadata/sources/mqtt/confKeys/bench '{"connectionSelector":"bench","qos":0}'
post POST streams '{"sql":"CREATE STREAM readings (ts FLOAT, value FLOAT, device STRING) WITH (TYPE=\"mqtt\", DATASOURCE=\"devices/readings\", FORMAT=\"JSON\", CONF_KEY=\"bench\", SHARED=\"true\")"}'

# One process, one connection, a request for each rule.
for number in $(seq 0 $((QUERIES - 1))); do
  [ "$number" -gt 0 ] && echo next
  cat <<RULE
url = "http://127.0.0.1:$PORT/rules"
header = "Content-Type: application/json"
data = "{\"id\":\"r$number\",\"sql\":\"SELECT ts, value FROM readings WHERE device = \\\\\"$number\\\\\"\",\"actions\":[{\"mqtt\":{\"connectionSelector\":\"bench\",\"topic\":\"device/$number/reading\",\"qos\":0,\"sendSingle\":true}}]}"
output = "/dev/null"
write-out = "%{http_code}\n"
RULE
done >"$WORK/rules"
begun=$(date +%s.%N)
refused=$(curl -sS -K "$WORK/rules" | grep -cv '^201$' || true)
echo "submitted in $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $begun }") s, $refused refused"
[ "$refused" = 0 ] || tail -3 "$WORK/log/posts" >&2
sleep "${SETTLE:-5}"
measure eKuiper
