//! Workloads: simulated sensors, Poisson arrivals, a generator that speaks MQTT as a broker.
