// One query for each user on one shared topic, as a Flink job: N filters behind one MQTT source ("filters"), or what Flink
// does best, one keyed stream for all of them ("keyed"), which is then no longer a query for each user.
//
// Flink has no MQTT connector; source and sink are a few lines over the Paho client, QoS 0, one connection each.

import java.nio.charset.StandardCharsets;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.RichSinkFunction;
import org.apache.flink.streaming.api.functions.source.RichSourceFunction;
import org.eclipse.paho.client.mqttv3.IMqttMessageListener;
import org.eclipse.paho.client.mqttv3.MqttAsyncClient;
import org.eclipse.paho.client.mqttv3.MqttConnectOptions;
import org.eclipse.paho.client.mqttv3.persist.MemoryPersistence;

public class UserQueries {
    static MqttAsyncClient connect(String broker, String id) throws Exception {
        MqttAsyncClient client = new MqttAsyncClient("tcp://" + broker, id, new MemoryPersistence());
        MqttConnectOptions options = new MqttConnectOptions();
        options.setMaxInflight(10_000);
        client.connect(options).waitForCompletion();
        return client;
    }

    /** Reads the topic. */
    static class Source extends RichSourceFunction<String> {
        private final String broker;
        private volatile boolean runs = true;

        Source(String broker) { this.broker = broker; }

        @Override public void run(SourceContext<String> context) throws Exception {
            LinkedBlockingQueue<String> received = new LinkedBlockingQueue<>(1 << 16);
            MqttAsyncClient client = connect(broker, "flink-source");
            IMqttMessageListener listener =
                (topic, message) -> received.put(new String(message.getPayload(), StandardCharsets.UTF_8));
            client.subscribe("devices/readings", 0, null, null, listener).waitForCompletion();
            while (runs) context.collect(received.take());
        }

        @Override public void cancel() { runs = false; }
    }

    /** Publishes the readings of a device; all sinks of the process share one connection. */
    static class Sink extends RichSinkFunction<String> {
        private static MqttAsyncClient shared;
        private final String broker;

        Sink(String broker) { this.broker = broker; }

        @Override public void open(Configuration parameters) throws Exception {
            synchronized (Sink.class) { if (shared == null) shared = connect(broker, "flink-sink"); }
        }

        @Override public void invoke(String event, Context context) throws Exception {
            int end = event.lastIndexOf(",\"device\"");
            byte[] payload = (event.substring(0, end) + "}").getBytes(StandardCharsets.UTF_8);
            shared.publish("device/" + device(event) + "/reading", payload, 0, false);
        }
    }

    static String device(String event) {
        int start = event.indexOf("\"device\":\"") + 10;
        return event.substring(start, event.indexOf('"', start));
    }

    public static void main(String[] arguments) throws Exception {
        String broker = arguments[0], form = arguments[2];
        int queries = Integer.parseInt(arguments[1]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
        environment.getConfig().enableObjectReuse();
        DataStream<String> events = environment.addSource(new Source(broker));
        if (form.equals("keyed")) {
            events.keyBy(UserQueries::device).filter(event -> true).addSink(new Sink(broker));
        } else {
            for (int number = 0; number < queries; number++) {
                String device = Integer.toString(number);
                events.filter(event -> device(event).equals(device)).addSink(new Sink(broker));
            }
        }
        environment.execute("user queries");
    }
}
