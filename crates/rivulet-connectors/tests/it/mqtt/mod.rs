//! MQTT as others see it: our client against Mosquitto, Mosquitto's clients against our broker, and both brokers side
//! by side.

mod support;
mod probe;
mod client_with_mosquitto;
mod client_without_broker;
mod broker_with_mosquitto_clients;
mod broker_bounds;
mod broker_faults;
mod durable;
mod intake;
mod malformed;
mod passed_on;
mod qos2;
mod shared;
mod side_by_side;
mod terms;
