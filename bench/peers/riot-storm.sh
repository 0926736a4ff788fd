#!/usr/bin/env bash
# RIoTBench's ETL, STATS and PRED on Apache Storm and on Rivulet, in turns: the most events a second at the latency bound.
#
#   mvn -f bench/peers/storm/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=target/storm-lib
#   STORM_LIB=target/storm-lib bench/peers/riot-storm.sh [TOPOLOGY ...]
#
# A line of JSON for each curve, and at the end median and standard deviation over the runs. Both engines must give the golden
# results, or nothing is measured. RUNS is 3, in the second of which the order is turned round; CPUS 1 (a list is measured one
# by one); WARM_UP 60 and SECONDS_EACH 20 are seconds, HEAP is the JVM's, 1g. FORMS are what Storm is given, as
# ackers:batch: 0:1 is Storm as EdgeWise ran it, 1:1 follows each event to its end, 0:100 passes tuples on in batches. CURVES
# are those of `rivulet bench riot`. RATES, with commas, are measured before the search; BURST_MS 100 sends as the paper did.
# ENGINES are "storm rivulet"; without Rivulet's program, name only Storm.
set -euo pipefail
cd "$(dirname "$0")/../.."
RIVULET=${RIVULET:-target/release/rivulet}
STORM_LIB=$(realpath "${STORM_LIB:?the folder of the jars}")
TOPOLOGIES=("$@")
[ ${#TOPOLOGIES[@]} -gt 0 ] || TOPOLOGIES=(etl stats pred)
DATA=crates/rivulet-bench/riot
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
javac -nowarn -cp "$STORM_LIB/*" -d "$WORK/classes" bench/peers/storm/Riot.java 2>"$WORK/javac" || { cat "$WORK/javac" >&2; exit 1; }

# storm CPUS TOPOLOGY [option=value ...]
storm() {
  timeout "${TIMEOUT:-3600}" taskset -c "0-$(($1 - 1))" java -Xms"${HEAP:-1g}" -Xmx"${HEAP:-1g}" -XX:+UseG1GC \
    -XX:ActiveProcessorCount="$1" -Dlog4j2.configurationFile=bench/peers/storm/log4j2.xml -Djava.io.tmpdir="$WORK" \
    -cp "$WORK/classes:$STORM_LIB/*" Riot "$DATA" "${@:2}"
}
rivulet() {
  local more=()
  [ -z "${RATES:-}" ] || more+=(--rates "$RATES")
  [ -z "${BURST_MS:-}" ] || more+=(--burst "${BURST_MS}ms")
  "$RIVULET" bench riot --json --topology "$2" --cpus "$1" --curve "${CURVES:-fused,congestion}" \
    --duration "${SECONDS_EACH:-20}s" "${more[@]}" |
    sed 's/{"topology"/\n&/g' | sed -n 's/^{"topology"/{"engine":"rivulet","topology"/; s/^\({"engine".*}\)\(,\|\]}\)$/\1/p'
}
one() { # RUN CPUS TOPOLOGY FORM
  case $4 in
    rivulet) rivulet "$2" "$3" ;;
    *) storm "$2" "$3" ackers="${4%:*}" batch="${4#*:}" cpus="$2" warm-up="${WARM_UP:-60}" seconds="${SECONDS_EACH:-20}" \
      rates="${RATES:-}" burst-ms="${BURST_MS:-0}" ;;
  esac | sed "s/^{/{\"run\":$1,/" | tee -a "$WORK/lines"
}

FORMS=${FORMS:-0:1 1:1 0:100}
case " ${ENGINES:-storm rivulet} " in *" storm "*) for topology in "${TOPOLOGIES[@]}"; do storm 1 "$topology" golden=true; done ;; *) FORMS= ;; esac
case " ${ENGINES:-storm rivulet} " in *" rivulet "*) FORMS="$FORMS rivulet" ;; esac
for topology in "${TOPOLOGIES[@]}"; do
  for cpus in ${CPUS:-1}; do
    for run in $(seq "${RUNS:-3}"); do
      order=$FORMS
      [ "$run" != 2 ] || order=$(tr ' ' '\n' <<<"$FORMS" | tac)
      for form in $order; do one "$run" "$cpus" "$topology" "$form"; done
    done
  done
done
awk '
  function figure(name,   at) { return match($0, "\"" name "\":[0-9.]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : "" }
  function word(name) { return match($0, "\"" name "\":\"?[^,\"}]*") ? " " name " " substr($0, RSTART + length(name) + 3 + (substr($0, RSTART + length(name) + 3, 1) == "\""), RLENGTH - length(name) - 3 - (substr($0, RSTART + length(name) + 3, 1) == "\"")) : "" }
  { key = word("engine") word("topology") word("cpus") word("ackers") word("batch") word("fuse") word("policy")
    if (!(key in n)) order[++keys] = key
    i = ++n[key]; input[key, i] = figure("input_per_s") + 0; cpu[key, i] = figure("cpu_us_per_event") + 0 }
  function median(of, key,   i, j, x, sorted) {
    for (i = 1; i <= n[key]; i++) { x = of[key, i]; for (j = i - 1; j > 0 && sorted[j] > x; j--) sorted[j + 1] = sorted[j]; sorted[j + 1] = x }
    return n[key] % 2 ? sorted[(n[key] + 1) / 2] : (sorted[n[key] / 2] + sorted[n[key] / 2 + 1]) / 2 }
  function deviation(of, key,   i, mean, sum) {
    for (i = 1; i <= n[key]; i++) mean += of[key, i] / n[key]
    for (i = 1; i <= n[key]; i++) sum += (of[key, i] - mean) ^ 2
    return n[key] > 1 ? sqrt(sum / (n[key] - 1)) : 0 }
  END { for (k = 1; k <= keys; k++) { key = order[k]
    printf "%s: %d events/s (sd %d), %.2f us of processor time an event (sd %.2f), %d runs\n", substr(key, 2), median(input, key),
      deviation(input, key), median(cpu, key), deviation(cpu, key), n[key] } }' "$WORK/lines"
