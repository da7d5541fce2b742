package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/netdump"
	"github.com/barque/barque/internal/remains"
	"github.com/barque/barque/network/bandwidth"
	"github.com/barque/barque/network/cni"
	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/policy"
	"github.com/barque/barque/network/proxy"
	"github.com/barque/barque/network/routes"
	"github.com/barque/barque/network/sysctls"
	"github.com/barque/barque/network/wireguard"
)

// Remains are the things that Run leaves in the process's network namespace, for a node whose
// configuration had these directories and this file. Pods must have ended. OwnCNIDir is set for a
// directory of CNI configurations that is the node's alone: its files stay.
func Remains(cniConfDir string, ownCNIDir bool, settingsFile string) []remains.Kind {
	kinds := []remains.Kind{
		{Name: "links of pods", Find: func(context.Context) ([]string, error) { return podLinks(cniConfDir) },
			Remove: func(context.Context) error { return removePodLinks(cniConfDir) }},
		{Name: "nftables tables", Find: tablesHere, Remove: func(context.Context) error {
			return errors.Join(proxy.Purge(), policy.Purge())
		}},
		{Name: "routes", Find: func(context.Context) ([]string, error) { return routes.Found() },
			Remove: func(context.Context) error { return routes.Purge() }},
		{Name: "links", Find: linksHere, Remove: func(context.Context) error {
			return errors.Join(overlay.Remove(), wireguard.Remove(), bandwidth.Purge())
		}},
		{Name: "addresses of cluster DNS", Find: addressesHere, Remove: func(context.Context) error {
			return errors.Join(unclaim(localDNS4.Addr()), unclaim(localDNS6.Addr()))
		}},
	}
	if settings := (&sysctls.Book{File: settingsFile}); settingsFile != "" {
		find := func(context.Context) ([]string, error) { return settings.Changed() }
		remove := func(context.Context) error {
			needed, err := forwardingNeeded()
			if err != nil {
				return err
			}
			return settings.PutBack(func(path string) bool {
				return needed && (path == forwarding4 || path == forwarding6)
			})
		}
		kinds = append(kinds, remains.Kind{Name: "settings of the kernel", Find: find, Remove: remove})
	}
	if !ownCNIDir {
		kinds = append(kinds, remains.Kind{Name: "CNI configuration", Find: func(context.Context) ([]string, error) {
			return cni.Found(cniConfDir)
		}, Remove: func(context.Context) error { return cni.Remove(cniConfDir) }})
	}
	return kinds
}

// podLinks are the node's ends of the links of pods. The kernel removes them a moment after their
// pods' network namespaces.
func podLinks(cniConfDir string) ([]string, error) {
	shares, err := cni.Shares(cniConfDir)
	if err != nil {
		return nil, err
	}
	return cni.PodLinks(shares)
}

// removePodLinks removes those that stay because a process of somebody else is in the namespace.
func removePodLinks(cniConfDir string) error {
	names, err := podLinks(cniConfDir)
	for _, name := range names {
		err = errors.Join(err, nodeaddr.RemoveLink(name))
	}
	return err
}

func tablesHere(context.Context) ([]string, error) {
	all, err := new(nft.Writer).Tables()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, t := range all {
		if t.Table == proxy.TableName || t.Table == policy.TableName {
			found = append(found, t.String())
		}
	}
	return found, nil
}

func linksHere(context.Context) ([]string, error) {
	found, err := bandwidth.Found()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{overlay.LinkName, wireguard.LinkName} {
		link, err := nodeaddr.LinkNamed(name)
		if err != nil {
			return nil, err
		}
		if link != nil {
			found = append(found, name)
		}
	}
	return found, nil
}

func addressesHere(context.Context) ([]string, error) {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	all, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(loopback, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the loopback: %w", err)
	}
	var found []string
	for _, a := range all {
		addr, _ := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); addr == localDNS4.Addr() || addr == localDNS6.Addr() {
			found = append(found, addr.String())
		}
	}
	return found, nil
}

// forwardingNeeded reports whether somebody else on this machine lets packets pass, as a runtime of
// containers or a VPN does: they do not switch forwarding on again.
func forwardingNeeded() (bool, error) {
	links, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("list links: %w", err)
	}
	own := []string{overlay.LinkName, wireguard.LinkName}
	return slices.ContainsFunc(links, func(l netlink.Link) bool {
		kinds := []string{"bridge", "tun", "wireguard", "vxlan", "macvlan", "ipvlan"}
		return slices.Contains(kinds, l.Type()) && !slices.Contains(own, l.Attrs().Name)
	}), nil
}

// SettingsFile is where a node with this data directory notes the kernel's settings from before.
func SettingsFile(dataDir string) string { return filepath.Join(dataDir, "kernel-settings.json") }
