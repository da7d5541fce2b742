package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netdump"
	"github.com/barque/barque/network/nodeaddr"
)

// SetMTU sets the MTU of running pods' links, at both ends. It finds the pods by their own routes
// within the shares. A pod that ends meanwhile is no error.
func SetMTU(shares []netip.Prefix, mtu int) error {
	links, err := podLinks(shares)
	if err != nil {
		return fmt.Errorf("MTU of the pods: %w", err)
	}
	links = slices.DeleteFunc(links, func(link *netlink.Veth) bool { return link.MTU == mtu })
	if len(links) == 0 {
		return nil
	}
	// The pod's end comes first: when that of the node is right, both are.
	byID := map[int][]*netlink.Veth{}
	for _, link := range links {
		byID[link.NetNsID] = append(byID[link.NetNsID], link)
	}
	var failed error
	err = eachNamespace(func(namespace netns.NsHandle) error {
		id, err := netlink.GetNetNsIdByFd(int(namespace))
		if err != nil || len(byID[id]) == 0 {
			return nil // it has no number here, as the other end of a link would
		}
		inside, err := netlink.NewHandleAt(namespace)
		if err != nil {
			return err
		}
		defer inside.Close()
		for _, link := range byID[id] {
			peer, err := inside.LinkByIndex(link.ParentIndex)
			if err == nil && peer.Type() == "veth" && peer.Attrs().ParentIndex == link.Index {
				err = errors.Join(inside.LinkSetMTU(peer, mtu), netlink.LinkSetMTU(link, mtu))
			}
			if err != nil && !isGone(err) {
				failed = errors.Join(failed, fmt.Errorf("link %s: %w", link.Name, err))
			}
		}
		delete(byID, id)
		return nil
	})
	if failed = errors.Join(failed, err); failed != nil {
		return fmt.Errorf("MTU of the pods: %w", failed)
	}
	return nil
}

func isGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}

// PodLinks returns the names of the node's ends of the links of pods in these shares.
func PodLinks(shares []netip.Prefix) ([]string, error) {
	links, err := podLinks(shares)
	if err != nil {
		return nil, fmt.Errorf("links of pods: %w", err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names, nil
}

// podLinks returns the node's ends of the links of its pods.
func podLinks(shares []netip.Prefix) ([]*netlink.Veth, error) {
	indexes := map[int]bool{}
	for _, share := range shares {
		family := netlink.FAMILY_V4
		if share.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netdump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, route := range routes {
			if to := nodeaddr.Prefix(route.Dst); to.IsValid() && to.IsSingleIP() && share.Contains(to.Addr()) {
				indexes[route.LinkIndex] = true
			}
		}
	}
	var links []*netlink.Veth
	for index := range indexes {
		link, err := netlink.LinkByIndex(index)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if veth, ok := link.(*netlink.Veth); ok && veth.NetNsID >= 0 {
			links = append(links, veth)
		}
	}
	return links, nil
}

// eachNamespace visits the network namespaces of all processes, each once.
func eachNamespace(visit func(netns.NsHandle) error) error {
	paths, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	seen := map[uint64]bool{}
	var failed error
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue // the thread has ended
		}
		status, ok := info.Sys().(*syscall.Stat_t)
		if !ok || seen[status.Ino] {
			continue
		}
		seen[status.Ino] = true
		namespace, err := netns.GetFromPath(path)
		if err != nil {
			continue
		}
		failed = errors.Join(failed, visit(namespace), namespace.Close())
	}
	return failed
}
