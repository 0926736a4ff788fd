#!/usr/bin/env bash
# NEXMark on Apache Flink and on Rivulet: the same queries over the same files of events, one after the other, results into nothing.
#
#   mvn -f bench/peers/flink/nexmark-pom.xml dependency:copy-dependencies -DoutputDirectory=target/flink-nexmark-lib
#   FLINK_LIB=target/flink-nexmark-lib bench/peers/nexmark-flink.sh [EVENTS [QUERY ...]]
#
# A line of JSON for each query, engine and parallelism. PARALLELISMS are 1 and 2 without, HEAP is the JVM's, 4g without.
# In Flink each query runs twice in its process, the second time counts, and what a job over a few events takes is subtracted; in Rivulet it
# is warmed up with a tenth of the events, and nothing is subtracted.
set -euo pipefail
cd "$(dirname "$0")/../.."
RIVULET=${RIVULET:-target/release/rivulet}
EVENTS=${1:-2000000}
shift || true
QUERIES=("$@")
[ ${#QUERIES[@]} -gt 0 ] || QUERIES=(q0 q1 q2 q3 q4 q5 q5_sliding q7 q8 q9 q10 q11 q12 q13 q14 q15 q16 q17 q18 q19 q20 q21 q22 q23)
FLINK_LIB=$(realpath "${FLINK_LIB:?the folder of the jars}")
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

"$RIVULET" bench nexmark --write "$WORK/events" --events "$EVENTS" --format csv
# Flink reads no header.
mkdir "$WORK/few"
for stream in person auction bid; do
  sed -i 1d "$WORK/events/$stream.csv"
  head -n 1000 "$WORK/events/$stream.csv" >"$WORK/few/$stream.csv"
done
seq 0 9999 | sed 's/.*/&,&/' | tee "$WORK/events/side_input.csv" >"$WORK/few/side_input.csv"
javac -nowarn -cp "$FLINK_LIB/*" -d "$WORK/classes" bench/peers/flink/NexmarkQueries.java 2>"$WORK/javac" || { cat "$WORK/javac" >&2; exit 1; }

for query in "${QUERIES[@]}"; do
  for parallelism in ${PARALLELISMS:-1 2}; do
    timeout "${TIMEOUT:-600}" java --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED -Xmx"${HEAP:-4g}" \
      -cp "$WORK/classes:$FLINK_LIB/*" NexmarkQueries "$WORK/events" "$WORK/few" bench/peers/flink/nexmark.sql "$parallelism" "$query" \
      2>"$WORK/flink" | sed "s/^{/{\"engine\":\"flink\",\"parallelism\":$parallelism,/" || tail -5 "$WORK/flink" >&2
    "$RIVULET" bench nexmark --query "$query" --events "$EVENTS" --source file --format csv --parallelism "$parallelism" --json \
      2>/dev/null | sed "s/^{/{\"engine\":\"rivulet\",/"
  done
done
