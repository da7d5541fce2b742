package network

import (
	"fmt"
	"os"
	"strings"
)

// forwarding is the switch without which the kernel drops whatever is not for
// this node itself. It belongs to the network namespace of the process.
const forwarding = "/proc/sys/net/ipv4/ip_forward"

// enableForwarding turns forwarding on when it is off; some network managers
// turn it off again.
func enableForwarding() error {
	value, err := os.ReadFile(forwarding)
	if err == nil && strings.TrimSpace(string(value)) == "1" {
		return nil
	}
	if err := os.WriteFile(forwarding, []byte("1\n"), 0o644); err != nil {
		return fmt.Errorf("network: pods need IP forwarding, which cannot be turned on (set net.ipv4.ip_forward = 1 in /etc/sysctl.d): %w", err)
	}
	return nil
}
