package network

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/network/policy"
	"github.com/barque/barque/network/proxy"
	"github.com/barque/barque/network/wireguard"
)

// Check reports the kernel features for pods and services that this machine lacks. It tests them in
// a temporary network namespace.
func Check() []check.Finding {
	var findings []check.Finding
	_ = osthread.Do(func() error { // a failure is a finding
		findings = checkInside()
		return nil
	})
	return findings
}

func checkInside() []check.Finding {
	const name = "network namespaces"
	namespace, err := netns.New()
	if err != nil {
		return []check.Finding{check.Failed(name, err.Error(), "run barque as root, on a kernel with CONFIG_NET_NS")}
	}
	defer namespace.Close()
	return []check.Finding{
		check.Passed(name, "can be made"),
		checkFeature("veth", tryVeth(), "links can be made", "load the module (modprobe veth)"),
		checkFeature("IP forwarding", enableForwarding(nil, true, false), "can be turned on",
			"make /proc/sys/net writable for barque"),
		checkFeature("nftables", proxy.Try(), "address translation, random choice, masquerade and reject work",
			"use a kernel with CONFIG_NF_TABLES, NFT_NAT, NFT_MASQ, NFT_NUMGEN, NFT_CT, NFT_REJECT and NFT_FIB_IPV4 (modprobe nf_tables nft_nat nft_masq nft_numgen nft_fib_ipv4)"),
		checkFeature("network policies", policy.Try(), "packets can be judged by their connections",
			"use a kernel with CONFIG_NF_TABLES, NFT_CT and NFT_FIB_IPV4 (modprobe nf_tables nft_ct nft_fib_ipv4)"),
		checkConntrack(),
		check.Passed("WireGuard", wireguard.Try()), // it is needed only where it is asked for
	}
}

func checkFeature(name string, err error, detail, remedy string) check.Finding {
	if err != nil {
		return check.Failed(name, err.Error(), remedy)
	}
	return check.Passed(name, detail)
}

func tryVeth() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "barque-check"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "barque-check-p"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make a pair of links: %w", err)
	}
	return netlink.LinkDel(link)
}

func checkConntrack() check.Finding {
	const name = "connection tracking"
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil && !errors.Is(err, os.ErrPermission) {
		return check.Failed(name, "the kernel has none", "load the module (modprobe nf_conntrack)")
	}
	return check.Passed(name, "there")
}
