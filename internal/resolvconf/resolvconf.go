// Package resolvconf reads a machine's resolver configuration (resolv.conf(5)).
package resolvconf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Default is where a machine has its configuration.
const Default = "/etc/resolv.conf"

// behindStub is systemd-resolved's file of its upstream servers.
const behindStub = "/run/systemd/resolve/resolv.conf"

// Config is the content of a resolv.conf.
type Config struct {
	Nameservers []string
	Searches    []string
	Options     []string
}

// Read reads a file. A missing file gives an empty Config.
//
// Pods have a loopback of their own. If Default has only a stub resolver on the loopback,
// systemd-resolved's list of its upstream servers is used.
func Read(path string) (Config, error) {
	if path == Default {
		return readBehind(path, behindStub)
	}
	return read(path)
}

func readBehind(usual, behind string) (Config, error) {
	c, err := read(usual)
	if err != nil || !OnLoopback(c.Nameservers) {
		return c, err
	}
	if real, err := read(behind); err == nil && len(real.Nameservers) > 0 {
		return real, nil
	}
	return c, nil
}

// OnLoopback reports whether there are servers, and all are on the loopback, where only the machine
// itself reaches them.
func OnLoopback(servers []string) bool {
	return len(servers) > 0 && !slices.ContainsFunc(servers, func(server string) bool {
		addr, err := netip.ParseAddr(server)
		return err != nil || !addr.IsLoopback()
	})
}

func read(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the node's resolver configuration: %w", err)
	}
	return Parse(string(content)), nil
}

// Parse reads a file's content. Of several search lines the last one counts, of an option that
// comes again the last value.
func Parse(content string) Config {
	var c Config
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			c.Nameservers = append(c.Nameservers, fields[1])
		case "search", "domain":
			c.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					c.Searches = append(c.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, option := range fields[1:] {
				c.Options = SetOption(c.Options, option)
			}
		}
	}
	return c
}

// SetOption adds an option (name or name:value), in the place of one with the same name.
func SetOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, have := range options {
		if has, _, _ := strings.Cut(have, ":"); has == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}
