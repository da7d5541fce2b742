package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/check"
)

// From when something is a finding of the doctor that is no warning of the status: it need not be a fault now.
const (
	manyChanges  = 3 // of leaders, within changesIn
	changesIn    = time.Hour
	loadPerCPU   = 4.0
	lowMemory    = 10 // a tenth of it is available
	manyHandles  = 10 // a tenth of them is left
	manyRoutines = 20_000
	slowTail     = 250 * time.Millisecond // one write to the log in a hundred
)

// diagnose draws the conclusions: the warnings of the status first, then what the servers' files show.
func (e *examination) diagnose() {
	if e.Status != nil {
		e.Findings = append(e.Findings, e.Status.Warnings...)
		e.restless()
		for _, m := range e.Status.Members {
			if m.Store != nil && m.Store.DiskP99Seconds > slowTail.Seconds() {
				e.add(node.Warning{Severity: node.Attention, Node: m.Name, On: m.Name, Mend: "iostat -x 1",
					Text: fmt.Sprintf("one write in a hundred to the log of server %s takes %s or more", m.Name, secondsText(m.Store.DiskP99Seconds))})
			}
		}
	}
	for _, d := range e.servers {
		e.Findings = append(e.Findings, machineFindings(d.Server, d.Files["machine.txt"])...)
		e.Findings = append(e.Findings, checkFindings(d.Server, d.Files["check.json"])...)
		e.Findings = append(e.Findings, programFindings(d)...)
	}
	slices.SortStableFunc(e.Findings, func(a, b node.Warning) int { return cmp.Compare(a.Severity, b.Severity) })
}

// restless finds a cluster whose leader changes often.
func (e *examination) restless() {
	changes, reasons := 0, map[string]int{}
	for _, c := range e.Status.LeaderChanges {
		if c.Leader != "" && c.Before != "" && e.Status.Time.Sub(c.At) < changesIn {
			changes++
			reasons[cmp.Or(c.Reason, "for a reason that nobody told")]++
		}
	}
	if changes < manyChanges {
		return
	}
	var why []string
	for _, r := range sortedKeys(reasons) {
		why = append(why, fmt.Sprintf("%d× %s", reasons[r], r))
	}
	e.add(node.Warning{Severity: node.Attention, Mend: "barque cluster status --watch",
		Text: fmt.Sprintf("the leader changed %d times in the last hour: %s", changes, strings.Join(why, "; "))})
}

// machineFindings reads what the kernel of a server told.
func machineFindings(server, text string) []node.Warning {
	facts := sections(text)
	var found []node.Warning
	add := func(mend, format string, args ...any) {
		found = append(found, node.Warning{Severity: node.Attention, Node: server, On: server, Mend: mend, Text: fmt.Sprintf("server %s: ", server) + fmt.Sprintf(format, args...)})
	}
	cpus := float64(strings.Count(facts["/proc/stat"], "\ncpu"))
	if load := number(facts["/proc/loadavg"], 0); cpus > 0 && load > loadPerCPU*cpus {
		add("top", "the load is %.0f on %.0f CPUs", load, cpus)
	}
	total, available := memory(facts["/proc/meminfo"], "MemTotal"), memory(facts["/proc/meminfo"], "MemAvailable")
	if total > 0 && available < total/lowMemory {
		add("free -m", "%d MiB of %d MiB of memory are available", available>>10, total>>10)
	}
	if used, most := number(facts["/proc/sys/fs/file-nr"], 0), number(facts["/proc/sys/fs/file-nr"], 2); most > 0 && most-used < most/manyHandles {
		add("sysctl fs.file-max", "%.0f of %.0f open files are taken", used, most)
	}
	if facts["/proc/sys/net/ipv4/ip_forward"] == "0" {
		add("sysctl -w net.ipv4.ip_forward=1", "the kernel forwards no packets, so pods reach nothing")
	}
	return found
}

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

// number returns the n-th field; 0 when there is none.
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

// memory returns a line of /proc/meminfo, in KiB; 0 when there is none.
func memory(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return int64(number(rest, 0))
		}
	}
	return 0
}

// logged are lines of the log that are worth a person's look, whatever the status says.
var logged = regexp.MustCompile(`level=ERROR|panic:|fatal error:`)

// programFindings reads the server's log and goroutines.
func programFindings(d node.Diagnosis) []node.Warning {
	var found []node.Warning
	if n := strings.Count(d.Files["goroutines.txt"], "\ngoroutine "); n > manyRoutines {
		found = append(found, node.Warning{Severity: node.Attention, Node: d.Server, Text: fmt.Sprintf("server %s has %d goroutines: something waits that should not", d.Server, n)})
	}
	var last string
	n := 0
	for line := range strings.Lines(d.Files["log.txt"]) {
		if logged.MatchString(line) {
			n, last = n+1, strings.TrimSpace(line)
		}
	}
	if n > 0 {
		const most = 240
		if len(last) > most {
			last = strings.ToValidUTF8(last[:most], "") + "…"
		}
		found = append(found, node.Warning{Severity: node.Attention, Node: d.Server, On: d.Server, Mend: "journalctl -u barque-server -p err",
			Text: fmt.Sprintf("server %s has logged %s, the last one: %s", d.Server, plural(n, "error", "errors"), last)})
	}
	return found
}

// checkFindings reads what `barque check` found on a server.
func checkFindings(server, text string) []node.Warning {
	var findings []check.Finding
	if json.Unmarshal([]byte(text), &findings) != nil {
		return nil // an older server, which tells it in another way
	}
	var found []node.Warning
	for _, f := range findings {
		if !f.OK {
			found = append(found, node.Warning{Severity: node.Attention, Node: server, On: server, Mend: cmp.Or(f.Remedy, "barque check"), Text: fmt.Sprintf("server %s: %s: %s", server, f.Name, f.Detail)})
		}
	}
	return found
}
