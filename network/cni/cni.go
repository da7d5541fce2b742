// Package cni writes the configuration from which the container runtime's CNI plugins give each pod
// its link and its addresses, and keeps the MTU of these links right. It owns one file.
//
// Each pod has a point-to-point link to the node and no neighbours on layer 2. All of its packets
// pass the node's IP layer, where the service proxy translates them, also between two pods of one
// node. On a bridge the answers of such connections would go directly and untranslated, without the
// module br_netfilter.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// fileName sorts before an operator's files; the runtime takes the first.
const fileName = "10-barque.conflist"

// Config is a node's part of the pod network.
type Config struct {
	// Dir is the container runtime's directory of CNI configurations.
	Dir string
	// IPAMDir keeps the addresses that are given out.
	IPAMDir string
	// PodCIDRs are this node's shares of the pod addresses: one, or one of each family.
	PodCIDRs []netip.Prefix
	// MTU of the pods' links.
	MTU int
}

type object = map[string]any

// Write writes c to the file. It replaces a differing file atomically: the runtime watches the
// directory.
func Write(c Config) error {
	var ranges [][]object
	var routes []object
	for _, share := range c.PodCIDRs {
		everything := netip.PrefixFrom(share.Addr(), 0).Masked()
		ranges = append(ranges, []object{{"subnet": share.Masked().String()}})
		routes = append(routes, object{"dst": everything.String()})
	}
	content, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "barque",
		"plugins": []object{{
			"type": "ptp",
			"mtu":  c.MTU,
			"ipam": object{
				"type":    "host-local",
				"dataDir": c.IPAMDir,
				"ranges":  ranges,
				"routes":  routes,
			},
		}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	content = append(content, '\n')
	path := filepath.Join(c.Dir, fileName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	// The runtime must not take the name for a configuration.
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	return nil
}

// Found returns the file's name, if it is there.
func Found(dir string) ([]string, error) {
	path := filepath.Join(dir, fileName)
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []string{path}, err
}

// Shares returns the PodCIDRs of the file; none without it.
func Shares(dir string) ([]netip.Prefix, error) {
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet netip.Prefix `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var shares []netip.Prefix
	for _, p := range c.Plugins {
		for _, of := range p.IPAM.Ranges {
			for _, r := range of {
				shares = append(shares, r.Subnet)
			}
		}
	}
	return shares, nil
}

// Remove removes the file; a missing one is no error.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	return nil
}
