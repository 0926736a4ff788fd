#!/usr/bin/env bash
# Apache Flink: one filter for each user behind one source, in one job of one process, chained into one thread by Flink.
#
#   mvn -f bench/peers/flink/pom.xml dependency:copy-dependencies -DoutputDirectory=target/flink-lib
#   FLINK_LIB=target/flink-lib bench/peers/flink.sh [QUERIES [SECONDS]]
#
# FORM=keyed makes it one keyed stream instead, which serves all users with one query. HEAP is the JVM's, 4g without.
# The same load on Rivulet: rivulet bench many --shared-topic --queries QUERIES --duration SECONDSs
cd "$(dirname "$0")/../.." && source bench/peers/common.sh
QUERIES=${1:-5000} SECONDS_SENT=${2:-20} FORM=${FORM:-filters}
FLINK_LIB=$(realpath "${FLINK_LIB:?the folder of the jars}")
start_generator
javac -nowarn -cp "$FLINK_LIB/*" -d "$WORK/classes" bench/peers/flink/UserQueries.java 2>"$WORK/javac" || { cat "$WORK/javac" >&2; exit 1; }

java --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED -Xmx"${HEAP:-4g}" -Xss64m \
  -cp "$WORK/classes:$FLINK_LIB/*" UserQueries "$BROKER" "$QUERIES" "$FORM" >"$WORK/out" 2>&1 &
PEER=$!
begun=$(date +%s.%N)
for _ in $(seq "${SUBMIT_MAX:-300}"); do
  tell '{"report":{}}'
  # The source and the sinks are connected.
  [ "$(figure connections)" -ge 2 ] && break
  kill -0 "$PEER" 2>/dev/null || { tail -5 "$WORK/out" >&2; exit 1; }
  sleep 1
done
echo "submitted in $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $begun }") s"
sleep "${SETTLE:-5}"
measure "Flink, $FORM"
