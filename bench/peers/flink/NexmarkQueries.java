// NEXMark queries in Flink SQL over files of events, in one process: each query runs once to warm the process up, then over a few events,
// then over all again. What the last run took, by the clock and by the processor time of the whole process (the collector and compiler
// of the JVM included), less what the run over a few events took, is what the events cost: a job takes a second or two to start.
//
// Arguments: folder of the files (CSV without header), folder of files with a few events, file of the queries, parallelism, names of the
// queries.

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.TableEnvironment;

public class NexmarkQueries {
    /** The sections of the file by name: a query stands behind a line "-- name". */
    static Map<String, String> sections(Path file) throws Exception {
        Map<String, String> sections = new LinkedHashMap<>();
        String name = null;
        for (String line : Files.readAllLines(file)) {
            if (line.startsWith("-- ")) sections.put(name = line.substring(3).split(" ")[0], "");
            else if (name != null) sections.merge(name, line + "\n", String::concat);
        }
        return sections;
    }

    static TableEnvironment environment(Map<String, String> sections, String folder, int parallelism) {
        Configuration options = new Configuration();
        Map<String, String> settings = Map.of(
            "parallelism.default", Integer.toString(parallelism),
            "pipeline.object-reuse", "true",
            "state.backend.type", "hashmap",
            "table.local-time-zone", "UTC",
            // What the benchmark's own runner sets.
            "table.exec.mini-batch.enabled", "true",
            "table.exec.mini-batch.allow-latency", "2 s",
            "table.exec.mini-batch.size", "50000",
            "table.optimizer.distinct-agg.split.enabled", "true");
        settings.forEach(options::setString);
        TableEnvironment environment =
            TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(options).build());
        for (String statement : sections.get("tables").replace("{folder}", folder).split(";")) {
            if (!statement.isBlank()) environment.executeSql(statement);
        }
        return environment;
    }

    static long rows(String folder, String stream) throws Exception {
        try (Stream<String> lines = Files.lines(Path.of(folder, stream + ".csv"))) { return lines.count(); }
    }

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        String few = arguments[1];
        Map<String, String> sections = sections(Path.of(arguments[2]));
        int parallelism = Integer.parseInt(arguments[3]);
        Map<String, Long> rows = new LinkedHashMap<>();
        for (String stream : new String[] {"person", "auction", "bid"}) rows.put(stream, rows(folder, stream));
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int place = 4; place < arguments.length; place++) {
            String name = arguments[place], query = sections.get(name);
            if (query == null) {
                System.out.printf("{\"query\":\"%s\",\"failure\":\"not in Flink\"}%n", name);
                continue;
            }
            long events = 0;
            for (Map.Entry<String, Long> stream : rows.entrySet()) {
                if (query.matches("(?s).*\\b(FROM|JOIN|TABLE) " + stream.getKey() + "\\b.*")) events += stream.getValue();
            }
            double[] seconds = new double[3], cpu = new double[3];
            String[] inputs = {folder, few, folder};
            for (int round = 0; round < inputs.length; round++) {
                TableEnvironment environment = environment(sections, inputs[round], parallelism);
                long began = System.nanoTime(), cpuBefore = process.getProcessCpuTime();
                environment.sqlQuery(query).insertInto(TableDescriptor.forConnector("blackhole").build()).execute().await();
                seconds[round] = (System.nanoTime() - began) / 1e9;
                cpu[round] = (process.getProcessCpuTime() - cpuBefore) / 1e9;
            }
            double cost = Math.max(cpu[2] - cpu[1], 1e-3);
            System.out.printf(Locale.ROOT,
                "{\"query\":\"%s\",\"events\":%d,\"elapsed_s\":%.3f,\"cpu_s\":%.3f,\"start_cpu_s\":%.3f,\"events_per_s_per_core\":%.0f}%n",
                name, events, seconds[2], cpu[2], cpu[1], events / cost);
        }
        // The local cluster's threads are no reason to stay.
        System.exit(0);
    }
}
