package network

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/barque/barque/network/nodeaddr"
)

// The switches without which the kernel drops all packets that are not for this node itself. They
// belong to the network namespace of the process.
const (
	forwarding4 = "/proc/sys/net/ipv4/ip_forward"
	forwarding6 = "/proc/sys/net/ipv6/conf/all/forwarding"
)

// enableForwarding turns forwarding on for the families when it is off; some
// network managers turn it off again.
func enableForwarding(with4, with6 bool) error {
	var failed error
	if with4 {
		failed = turnOn(forwarding4, "net.ipv4.ip_forward")
	}
	if with6 {
		failed = errors.Join(failed, nodeaddr.KeepAdvertisements(), turnOn(forwarding6, "net.ipv6.conf.all.forwarding"))
	}
	return failed
}

func turnOn(path, name string) error {
	value, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(value)) != "0" {
		return nil
	}
	if err := os.WriteFile(path, []byte("1\n"), 0o644); err != nil {
		return fmt.Errorf(
			"network: pods need IP forwarding, which cannot be turned on (set %s = 1 in /etc/sysctl.d): %w", name, err)
	}
	return nil
}
