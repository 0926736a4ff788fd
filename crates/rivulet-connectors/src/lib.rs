//! MQTT client and embedded broker; payload formats.
