package network

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/sysctls"
)

// The switches without which the kernel drops all packets that are not for this node itself. They
// belong to the network namespace of the process.
const (
	forwarding4 = "/proc/sys/net/ipv4/ip_forward"
	forwarding6 = "/proc/sys/net/ipv6/conf/all/forwarding"
)

// enableForwarding turns forwarding on for the families when it is off; some
// network managers turn it off again.
func enableForwarding(settings *sysctls.Book, with4, with6 bool) error {
	var failed error
	if with4 {
		failed = turnOn(settings, forwarding4)
	}
	if with6 {
		failed = errors.Join(failed, nodeaddr.KeepAdvertisements(settings.Set), turnOn(settings, forwarding6))
	}
	return failed
}

func turnOn(settings *sysctls.Book, path string) error {
	value, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(value)) != "0" {
		return nil
	}
	if err := settings.Set(path, "1"); err != nil {
		return fmt.Errorf(
			"network: pods need IP forwarding, which cannot be turned on (set %s = 1 in /etc/sysctl.d): %w", sysctls.Name(path), err)
	}
	return nil
}
