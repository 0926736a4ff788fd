# What the runners of this folder share: the generator of `rivulet bench` as the broker, and what a process uses.
# Sourced, not run. Needs bash and RIVULET, the path of the program.

set -euo pipefail
RIVULET=${RIVULET:-target/release/rivulet}
WORK=$(mktemp -d)
PEER=
finish() {
  [ -n "$PEER" ] && kill "$PEER" 2>/dev/null && wait "$PEER" 2>/dev/null || true
  [ -n "${GENERATOR_PID:-}" ] && kill "$GENERATOR_PID" 2>/dev/null || true
  [ -n "${KEEP:-}" ] || rm -rf "$WORK"
}
trap finish EXIT

# Starts the generator; BROKER is host:port then.
start_generator() {
  coproc GENERATOR { exec "$RIVULET" bench generator; }
  read -r line <&"${GENERATOR[0]}"
  BROKER=$(grep -o '127[^"]*' <<<"$line")
}

# Gives it one command and leaves its answer in ANSWER.
tell() {
  echo "$1" >&"${GENERATOR[1]}"
  read -r ANSWER <&"${GENERATOR[0]}"
  case $ANSWER in '{"error"'*) echo "$ANSWER" >&2; exit 1 ;; esac
}

# A number of the last answer.
figure() { grep -o "\"$1\":[0-9.]*" <<<"$ANSWER" | head -1 | cut -d: -f2; }

# CPU seconds of the peer so far, its resident memory in MB, and its threads.
cpu_s() { awk '{ sub(/.*\) /, ""); print ($12 + $13) / 100 }' "/proc/$PEER/stat"; }
rss_mb() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$PEER/status"; }
threads() { awk '/^Threads/ { print $2 }' "/proc/$PEER/status"; }

# Feeds QUERIES queries of a shared topic, an event a second each, for SECONDS seconds, waits for what still comes, and
# prints a line: every event should come out of exactly one query.
measure() {
  tell "{\"prepare\":{\"queries\":$QUERIES,\"workload\":{\"applications\":[\"device_readings\"]}}}"
  tell '{"wait":{"timeout_ms":60000}}'
  local idle_mb before
  idle_mb=$(rss_mb)
  before=$(cpu_s)
  tell "{\"start\":{\"rate_per_query\":1.0,\"duration_ms\":$((SECONDS_SENT * 1000))}}"
  local deadline=$(($(date +%s) + SECONDS_SENT + ${DRAIN:-20}))
  while sleep 0.5; do
    tell '{"report":{}}'
    grep -q '"is_running":false' <<<"$ANSWER" && [ "$(figure results_received)" -ge "$(figure events_sent)" ] && break
    [ "$(date +%s)" -ge "$deadline" ] && break
  done
  echo "$1: $QUERIES queries, $(figure events_sent) events sent, $(figure results_received) delivered" \
    "($(awk "BEGIN { printf \"%.1f\", 100 * $(figure results_received) / ($(figure events_sent) + 1e-9) }") %);" \
    "latency p50 $(figure result_latency_us_p50) us, p99 $(figure result_latency_us_p99) us;" \
    "CPU $(awk "BEGIN { print $(cpu_s) - $before }") s, memory idle $idle_mb MB, at the end $(rss_mb) MB," \
    "$(threads) threads; generator $(figure cpu_s) s CPU, p99 $(figure lateness_us_p99) us late"
}
