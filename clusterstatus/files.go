package clusterstatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ConfigFile is a configuration file of a server that must be the same on all servers, or a group
// of flags like that, whose path is "".
type ConfigFile struct {
	Flag string `json:"flag"`
	Path string `json:"path,omitempty"`
	// Hash of the content that is in effect.
	Hash string `json:"hash,omitempty"`
	// Next is the hash of the content on disk if it is another one, and counts from the next start
	// on.
	Next string `json:"next,omitempty"`
	// Problem says why the content on disk is not in effect, or what else is wrong with it.
	Problem string `json:"problem,omitempty"`
}

func (f ConfigFile) name() string { return strings.TrimSpace(f.Flag + " " + f.Path) }

// encryptionFlag names the file of the providers that encrypt objects.
const encryptionFlag = "--encryption-provider-config"

// files warns of configuration files with a problem, and of those that differ between servers: a
// client gets different answers by the server that it happens to reach. Servers of a version that
// does not report its files are left out.
func (w *warner) files() {
	hashes := map[string]map[string][]string{} // servers by hash by flag
	var reporting []*MemberStatus
	for i := range w.status.Members {
		m := &w.status.Members[i]
		if m.Files == nil {
			continue
		}
		reporting = append(reporting, m)
		for _, f := range m.Files {
			if hashes[f.Flag] == nil {
				hashes[f.Flag] = map[string][]string{}
			}
			if f.Problem == "" {
				continue
			}
			mend := w.by.Logged(m.Name, strings.Trim(f.Flag, "-…"))
			if f.Next != "" {
				mend = w.by.Restart(m.Name)
			}
			w.add(Attention, m.Name, m.Name, mend, "server %s: %s: %s", m.Name, f.name(), f.Problem)
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(hashes)) {
		of, path := hashes[flag], ""
		onDisk, due := map[string]bool{}, []string(nil) // hashes, and servers whose restart is due
		for _, m := range reporting {
			hash, disk := "", ""
			for _, f := range m.Files {
				if f.Flag != flag {
					continue
				}
				hash, disk, path = f.Hash, cmp.Or(f.Next, f.Hash), f.Path
				if f.Next != "" {
					due = append(due, m.Name)
				}
			}
			of[hash] = append(of[hash], m.Name)
			onDisk[disk] = true
		}
		if len(of) < 2 {
			continue
		}
		var groups []string
		for hash, servers := range of {
			slices.Sort(servers)
			group := strings.Join(servers, ", ")
			if hash == "" {
				group += " (without it)"
			}
			groups = append(groups, group)
		}
		slices.Sort(groups)
		mend := "start all servers with the same flags"
		if path != "" {
			mend = fmt.Sprintf("sha256sum %s on each server; copy the right file to the others", path)
		}
		effect := "What a user may do depends on the server that answers"
		if flag == encryptionFlag {
			effect = "A server may not be able to read what another one has written"
		}
		on := ""
		if len(onDisk) == 1 && due != nil {
			on, mend = w.restarts(due)
			effect += ". The files are equal on disk: a restart of " + strings.Join(due, ", ") + " is due"
		}
		w.add(Attention, "", on, mend, "%s differs between servers: %s. %s", flag, strings.Join(groups, " | "), effect)
	}
}

// restarts returns the remedy where servers are to be restarted, and the place for it.
func (w *warner) restarts(servers []string) (on, mend string) {
	slices.Sort(servers)
	var commands []string
	for _, name := range servers {
		if command := w.by.Restart(name); !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return strings.Join(servers, ", then "), strings.Join(commands, "; ")
}
