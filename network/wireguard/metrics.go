package wireguard

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the link, by the names of the peers.
var (
	handshakes = prometheus.NewDesc("barque_wireguard_last_handshake_timestamp_seconds",
		"When this node and a peer agreed on a key for the last time, in seconds since 1970; 0 for never.",
		[]string{"node"}, nil)
	received = prometheus.NewDesc("barque_wireguard_received_bytes_total", "Bytes received from a peer, encrypted.",
		[]string{"node"}, nil)
	sent = prometheus.NewDesc("barque_wireguard_sent_bytes_total", "Bytes sent to a peer, encrypted.",
		[]string{"node"}, nil)
)

// Describe implements prometheus.Collector.
func (d *Device) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{handshakes, received, sent} {
		to <- desc
	}
}

// Collect implements prometheus.Collector. A link that cannot be read has no metrics.
func (d *Device) Collect(to chan<- prometheus.Metric) {
	peers, err := d.Seen()
	if err != nil {
		return // an error would take all other metrics of the process along
	}
	for _, peer := range peers {
		last := 0.0
		if !peer.Handshake.IsZero() {
			last = float64(peer.Handshake.Unix())
		}
		to <- prometheus.MustNewConstMetric(handshakes, prometheus.GaugeValue, last, peer.Node)
		to <- prometheus.MustNewConstMetric(received, prometheus.CounterValue, float64(peer.Received), peer.Node)
		to <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(peer.Sent), peer.Node)
	}
}
