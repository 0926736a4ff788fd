#!/usr/bin/env bash
# A relay of three stages on Rivulet, Apache Storm and Mosquitto, in turns: messages a second, latency, what is lost.
#
#   mvn -f bench/peers/storm/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
#     -DoutputDirectory=target/storm-lib
#   STORM_LIB=target/storm-lib bench/peers/relay.sh [MESSAGE_BYTES ...]
#
# A line of JSON for each run. RUNS is 3; SECONDS_EACH 5; WARM_UP 30 is Storm's; FORMS are what Storm is given, as
# ackers:batch. ENGINES are "rivulet storm mosquitto". Rivulet's relay is a process of its own; Storm's is in the
# process of its sender and receiver, where no byte crosses a socket; Mosquitto's are a broker and its own clients, of
# which two make the relay, with QoS 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
RIVULET=${RIVULET:-target/release/rivulet}
SIZES=("$@")
[ ${#SIZES[@]} -gt 0 ] || SIZES=(50 1024 10240)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
engines=" ${ENGINES:-rivulet storm mosquitto} "
seconds=${SECONDS_EACH:-5}
case $engines in *" storm "*)
  STORM_LIB=$(realpath "${STORM_LIB:?the folder of the jars}")
  javac -nowarn -cp "$STORM_LIB/*" -d "$WORK/classes" bench/peers/storm/Relay.java
esac
for run in $(seq "${RUNS:-3}"); do
  for size in "${SIZES[@]}"; do
    case $engines in *" rivulet "*)
      "$RIVULET" bench relay --json --message-bytes "$size" --buffer-kib 16,1024 --duration "${seconds}s" |
        sed 's/{"experiment"/\n&/g' | sed -n 's/^{"experiment"/{"engine":"rivulet","experiment"/; T; s/}[],}]*$/}/p'
    esac
    case $engines in *" storm "*)
      for form in ${FORMS:-0:1 0:100 1:1}; do
        timeout 600 java -Xms1g -Xmx1g -XX:+UseG1GC -Dlog4j2.configurationFile=bench/peers/storm/log4j2.xml \
          -Djava.io.tmpdir="$WORK" -cp "$WORK/classes:$STORM_LIB/*" Relay message-bytes="$size" ackers="${form%:*}" \
          batch="${form#*:}" warm-up="${WARM_UP:-30}" seconds="$seconds"
      done
    esac
    case $engines in *" mosquitto "*) python3 bench/peers/relay_mosquitto.py "$size" "$seconds" ;; esac
  done
done
