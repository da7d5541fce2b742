// Package examination finds the faults of a cluster for the doctor: the warnings of its status, and
// those in the diagnoses of its servers. It is pure: the doctor has collected both.
package examination

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/network/faults"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

// Thresholds of the doctor's findings beyond the status's warnings. They need not be current
// faults.
const (
	manyChanges  = 3 // of leaders, within changesIn
	changesIn    = time.Hour
	loadPerCPU   = 4.0
	lowMemory    = 10 // a tenth of it is available
	manyHandles  = 10 // a tenth of them is left
	manyRoutines = 20_000
	slowTail     = 250 * time.Millisecond // one write to the log in a hundred
	enoughWrites = 200                    // fewer, as after a start, would make it a single write
)

// Examination holds the known state of a cluster and the faults found in it.
type Examination struct {
	Time     time.Time               `json:"time"`
	Findings []clusterstatus.Warning `json:"findings"`
	// Notes may help and are no faults: they do not count for the exit code.
	Notes  []string                     `json:"notes,omitempty"`
	Status *clusterstatus.ClusterStatus `json:"status,omitempty"` // absent when no server answers
	// Silent are the servers that gave no diagnosis, with the reason.
	Silent map[string]string `json:"silent,omitempty"`
	File   string            `json:"file,omitempty"` // with all that was collected

	Procedures clusterstatus.Procedures  `json:"-"`
	Servers    []clusterstatus.Diagnosis `json:"-"`
	// Network holds the nodes' recent network faults.
	Network []faults.Fault `json:"-"`
}

// Add adds a finding.
func (e *Examination) Add(w clusterstatus.Warning) {
	if e.Procedures.Here {
		w.On = ""
	}
	e.Findings = append(e.Findings, w)
}

// Note adds a note.
func (e *Examination) Note(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

// Diagnose adds the findings: the status's warnings first, then those from the servers' files.
func (e *Examination) Diagnose() {
	if e.Status != nil {
		e.Findings = append(e.Findings, e.Status.Warnings...)
		e.restless()
		for _, m := range e.Status.Members {
			if m.Store != nil && m.Store.DiskP99Seconds > slowTail.Seconds() && m.Store.DiskWrites >= enoughWrites {
				e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention, Node: m.Name, On: m.Name,
					Mend: "iostat -x 1",
					Text: fmt.Sprintf("one write in a hundred to the log of server %s takes %s or more", m.Name,
						clusterstatus.SecondsText(m.Store.DiskP99Seconds))})
			}
		}
		e.edge()
	}
	e.network()
	for _, m := range machinesOf(e.Servers) {
		e.machine(m)
		e.checks(m)
		for _, d := range m {
			e.program(d)
		}
	}
	slices.SortStableFunc(e.Findings,
		func(a, b clusterstatus.Warning) int { return cmp.Compare(a.Severity, b.Severity) })
}

// restless adds a finding for frequent changes of the leader.
func (e *Examination) restless() {
	changes, reasons := 0, map[string]int{}
	for _, c := range e.Status.LeaderChanges {
		if c.Leader != "" && c.Before != "" && e.Status.Time.Sub(c.At) < changesIn {
			changes++
			reasons[cmp.Or(c.Reason, "for an unknown reason")]++
		}
	}
	if changes < manyChanges {
		return
	}
	var why []string
	for _, r := range slices.Sorted(maps.Keys(reasons)) {
		why = append(why, fmt.Sprintf("%d× %s", reasons[r], r))
	}
	e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: "barque cluster status --watch",
		Text: fmt.Sprintf("the leader changed %d times in the last hour: %s", changes, strings.Join(why, "; "))})
}

// machine holds the diagnoses of all servers under one kernel: those of a dev cluster, or a single
// one.
type machine []clusterstatus.Diagnosis

// machinesOf groups servers by their kernel, so that a kernel's fault is reported once.
func machinesOf(servers []clusterstatus.Diagnosis) []machine {
	var out []machine
	at := map[string]int{}
	for _, d := range servers {
		boot := sections(d.Files["machine.txt"])["/proc/sys/kernel/random/boot_id"]
		i, known := at[boot]
		if !known || boot == "" || strings.Contains(boot, " ") { // an error's text, or an older server's
			i, out = len(out), append(out, nil)
			at[boot] = i
		}
		out[i] = append(out[i], d)
	}
	return out
}

// serversText names servers on one machine, as the beginning of a sentence.
func serversText(names []string) string {
	if len(names) == 1 {
		return "server " + names[0]
	}
	return "servers " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1] + ", on one machine"
}

func (m machine) names() []string {
	var out []string
	for _, d := range m {
		out = append(out, d.Server)
	}
	return out
}

// warn adds a finding about servers on one machine.
func (e *Examination) warn(servers []string, mend, format string, args ...any) {
	e.Add(
		clusterstatus.Warning{Severity: clusterstatus.Attention, Node: servers[0], On: servers[0], Mend: mend,
			Text: serversText(servers) + ": " + fmt.Sprintf(format, args...)})
}

// machine reads the kernel's data. All servers on it report the same, except for the network
// namespace.
func (e *Examination) machine(m machine) {
	facts, names := sections(m[0].Files["machine.txt"]), m.names()
	cpus := float64(strings.Count(facts["/proc/stat"], "\ncpu"))
	if load := number(facts["/proc/loadavg"], loadOf5Min); cpus > 0 && load > loadPerCPU*cpus {
		// The fault is its effect, such as lagging servers, slow disks and leader changes. Those
		// have their own findings.
		e.Note("%s: the load of the last five minutes is %.0f on %.0f CPUs", serversText(names), load, cpus)
	}
	total, available := memory(facts["/proc/meminfo"], "MemTotal"), memory(facts["/proc/meminfo"], "MemAvailable")
	if total > 0 && available < total/lowMemory {
		e.warn(names, "free -m", "%d MiB of %d MiB of memory are available", available>>10, total>>10)
	}
	if used, most := number(facts["/proc/sys/fs/file-nr"], 0), number(facts["/proc/sys/fs/file-nr"], 2); most > 0 &&
		most-used < most/manyHandles {
		e.warn(names, "sysctl fs.file-max", "%.0f of %.0f open files are taken", used, most)
	}
	for _, d := range m {
		if sections(d.Files["machine.txt"])["/proc/sys/net/ipv4/ip_forward"] == "0" {
			e.warn([]string{d.Server}, e.Procedures.From(d.Server, "sysctl -w net.ipv4.ip_forward=1"),
				"the kernel forwards no packets, so pods reach nothing")
		}
		if table, known := connections(d); known && table.Full() {
			e.warn([]string{d.Server}, e.Procedures.From(d.Server, faults.MendConnections),
				"%s: new connections are dropped when the table is full", table)
		}
		e.paths(d)
		e.tunnels(d)
	}
}

// connections is how full the table of tracked connections of a server's machine is.
func connections(d clusterstatus.Diagnosis) (c faults.Connections, known bool) {
	facts := sections(d.Files["machine.txt"])
	most := number(facts[faults.MaxFile], 0)
	// one of an earlier version does not tell
	return faults.Connections{Count: int(number(facts[faults.CountFile], 0)), Max: int(most)}, most > 0
}

// network reads the nodes' reports on their networks, without past faults. For a full table of
// connections the server's own data are better.
func (e *Examination) network() {
	for _, f := range e.Network {
		switch i := slices.IndexFunc(e.Servers, func(d clusterstatus.Diagnosis) bool { return d.Server == f.Node }); {
		case f.Mend == "":
			e.Note("%s", f.Text)
			continue
		case f.Reason == faults.ConnectionsFull && i >= 0:
			if _, known := connections(e.Servers[i]); known {
				continue
			}
		case f.Reason == faults.AddressConflict:
			if !e.Status.WarnsOfConflict(f.Node) {
				e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention, Node: f.Node, Mend: f.Mend,
					Text: f.Text})
			}
			continue
		}
		e.Add(
			clusterstatus.Warning{Severity: clusterstatus.Attention, Node: f.Node, On: f.Node,
				Mend: e.Procedures.From(f.Node, f.Mend), Text: f.Text})
	}
}

// paths reads which nodes large packets reach.
func (e *Examination) paths(d clusterstatus.Diagnosis) {
	var findings []path.Finding
	if json.Unmarshal([]byte(d.Files["paths.json"]), &findings) != nil {
		return // an earlier version without the report
	}
	var lost, silent []string
	for _, f := range findings {
		switch f.Answer {
		case path.Small:
			lost = append(lost, fmt.Sprintf("%s (%v, %d bytes)", f.Node, f.Address, f.Size))
		case path.Silent:
			silent = append(silent, fmt.Sprintf("%s (%v)", f.Node, f.Address))
		}
	}
	slices.Sort(lost)
	slices.Sort(silent)
	if len(lost) > 0 {
		e.warn([]string{d.Server}, e.Procedures.From(d.Server, "ip link"),
			"packets of the link's full size do not reach %s, but small ones do: set the MTU of the network between the nodes on the links of all nodes", strings.Join(lost, ", "))
	}
	if len(silent) > 0 {
		e.Note("%s: %s answered no ICMP echo, so the path of large packets is unknown", serversText([]string{d.Server}),
			strings.Join(silent, ", "))
	}
}

// tunnels reads with which nodes a server has agreed on no key of WireGuard for long.
func (e *Examination) tunnels(d clusterstatus.Diagnosis) {
	var seen []wireguard.Seen
	if json.Unmarshal([]byte(d.Files["wireguard.json"]), &seen) != nil {
		return // an earlier version without the report
	}
	var lost []string
	for _, peer := range seen {
		switch {
		case !peer.Stale(d.Time):
		case peer.Handshake.IsZero():
			lost = append(lost, fmt.Sprintf("%s (%s, never)", peer.Node, peer.Endpoint))
		default:
			lost = append(lost,
				fmt.Sprintf("%s (%s, last at %s)", peer.Node, peer.Endpoint, peer.Handshake.UTC().Format(time.RFC3339)))
		}
	}
	if len(lost) > 0 {
		e.warn([]string{d.Server}, "open the UDP port of WireGuard (51820, or --wireguard-port) between the nodes",
			"WireGuard has completed no recent handshake with %s: its pods are unreachable", strings.Join(lost, ", "))
	}
}

// loadOf5Min is the field of /proc/loadavg for that: the load of one minute is high whenever
// something starts.
const loadOf5Min = 1

// sections takes apart the text of MachineFacts.
func sections(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, "== ") {
		name, content, ok := strings.Cut(part, "\n")
		if ok && strings.HasPrefix(name, "/") {
			out[name] = strings.TrimSpace(content)
		}
	}
	return out
}

// number returns the n-th field; 0 without one.
func number(text string, n int) float64 {
	fields := strings.Fields(text)
	if n >= len(fields) {
		return 0
	}
	v, err := strconv.ParseFloat(fields[n], 64)
	if err != nil {
		return 0
	}
	return v
}

// memory returns a line of /proc/meminfo, in KiB; 0 without it.
func memory(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return int64(number(rest, 0))
		}
	}
	return 0
}

// program reads a server's log and goroutines.
func (e *Examination) program(d clusterstatus.Diagnosis) {
	if n := routines(d.Files["goroutines.txt"]); n > manyRoutines {
		e.warn([]string{d.Server}, "", "it has %d goroutines: something waits that should not", n)
	}
	l := readLog(d.Files["log.txt"], e.Time.Add(-errorsIn))
	if l.errors > 0 {
		e.warn([]string{d.Server}, e.Procedures.Errors(d.Server), "it has logged %s in the last hour, the last one: %s",
			terminal.Plural(l.errors, "error", "errors"), l.last)
	}
	if l.older > 0 {
		e.Note("server %s has logged %s before the last hour", d.Server, terminal.Plural(l.older, "error", "errors"))
	}
	for _, why := range slices.Sorted(maps.Keys(l.harmless)) {
		e.Note("server %s has logged %s: %s", d.Server,
			terminal.Plural(l.harmless[why], "error that is none", "errors that are none"), why)
	}
}

// routines returns the number of goroutines in a profile, or in the list of an earlier version.
func routines(text string) int {
	var total int
	if _, err := fmt.Sscanf(text, "goroutine profile: total %d", &total); err == nil {
		return total
	}
	return strings.Count(text, "\ngoroutine ")
}

// checks reads the results of `barque check` on the servers of a machine. Equal results on several
// servers are reported once.
func (e *Examination) checks(m machine) {
	found := map[check.Finding][]string{}
	var order []check.Finding
	for _, d := range m {
		var findings []check.Finding
		if json.Unmarshal([]byte(d.Files["check.json"]), &findings) != nil {
			continue // an older server, which reports it in another way
		}
		for _, f := range findings {
			if f.OK {
				continue
			}
			if found[f] == nil {
				order = append(order, f)
			}
			found[f] = append(found[f], d.Server)
		}
	}
	for _, f := range order {
		e.warn(found[f], cmp.Or(f.Remedy, "barque check"), "%s: %s", f.Name, f.Detail)
	}
}
