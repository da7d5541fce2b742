package cis

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/barque/barque/internal/terminal"
)

// Version is the benchmark's.
const Version = "CIS Kubernetes Benchmark v1.12"

// Status is the result of a row.
type Status string

// The results.
const (
	Pass          Status = "pass"
	Fail          Status = "fail"
	NotApplicable Status = "not applicable"
	Person        Status = "person"  // for a person to judge
	Unknown       Status = "unknown" // the evidence could not be collected
)

// Verdict is a status with its reason.
type Verdict struct {
	Status Status `json:"status"`
	// Reason is the evidence in a few words.
	Reason string `json:"reason,omitempty"`

	// mend is a command for the evidence; "" is the row's remedy.
	mend string
}

// Scope is what a row is about, and so the evidence that it needs.
type Scope int

// Scopes.
const (
	OfCluster Scope = iota // servers, nodes and objects
	OfMachine              // files of any node: it can be judged on an agent's machine alone
)

// Row is a row of the benchmark.
type Row struct {
	ID    string
	Level int    // of the benchmark
	Asks  string // in our words
	// Looks is the evidence that counts here.
	Looks string
	// Mend is the flag or command that mends a failure, and Flags are the flags in it.
	Mend  string
	Flags []string
	// Hardened is the reason why the row fails with the profile too; "" where it does not.
	Hardened string
	Scope    Scope

	judge func(*Evidence) Verdict
}

// Result is a judged row.
type Result struct {
	ID    string `json:"id"`
	Level int    `json:"level"`
	Asks  string `json:"asks"`
	Verdict
	// Mend is set on failures. It is a command for each machine, in lines, where files are wrong.
	Mend string `json:"mend,omitempty"`
}

// Report is the result of all rows.
type Report struct {
	Benchmark string         `json:"benchmark"`
	Counts    map[Status]int `json:"counts"`
	Rows      []Result       `json:"rows"`
}

// Judge judges all rows. has reports whether this version has a flag. Without servers only rows of
// the machine are judged.
func Judge(e *Evidence, has func(flag string) bool) *Report {
	r := &Report{Benchmark: Version, Counts: map[Status]int{}}
	for _, row := range Rows() {
		if len(e.Servers) == 0 && row.Scope != OfMachine {
			continue
		}
		result := Result{ID: row.ID, Level: row.Level, Asks: row.Asks, Verdict: row.judge(e)}
		if result.Status == Fail {
			result.Mend = cmp.Or(result.mend, row.Mends(has))
		}
		r.Counts[result.Status]++
		r.Rows = append(r.Rows, result)
	}
	return r
}

// Mends is Mend, with a note on flags that this version lacks.
func (r *Row) Mends(has func(flag string) bool) string {
	var missing []string
	for _, f := range r.Flags {
		if !has(f) {
			missing = append(missing, "--"+f)
		}
	}
	if len(missing) == 0 {
		return r.Mend
	}
	return r.Mend + " (this version has no " + strings.Join(missing, ", ") + ")"
}

// Failed returns the number of rows that fail or could not be judged.
func (r *Report) Failed() int { return r.Counts[Fail] + r.Counts[Unknown] }

// Summary has the counts in a fixed order.
func (r *Report) Summary() string {
	var parts []string
	for _, s := range []Status{Pass, Fail, Person, NotApplicable, Unknown} {
		if n := r.Counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) error {
	fmt.Fprintln(w, "ROW\tLEVEL\tRESULT\tASKED\tFOUND")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", row.ID, row.Level, row.Status, row.Asks, row.Reason)
		for line := range strings.Lines(row.Mend) {
			fmt.Fprintf(w, "\t\t\t\t→ %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	_, err := fmt.Fprintf(w, "\n%s: %s\n", r.Benchmark, r.Summary())
	return err
}

// The verdicts of judges.

func pass(format string, args ...any) Verdict {
	return Verdict{Status: Pass, Reason: fmt.Sprintf(format, args...)}
}
func fail(format string, args ...any) Verdict {
	return Verdict{Status: Fail, Reason: fmt.Sprintf(format, args...)}
}
func none(format string, args ...any) Verdict {
	return Verdict{Status: NotApplicable, Reason: fmt.Sprintf(format, args...)}
}
func person(format string, args ...any) Verdict {
	return Verdict{Status: Person, Reason: fmt.Sprintf(format, args...)}
}
func unknown(format string, args ...any) Verdict {
	return Verdict{Status: Unknown, Reason: fmt.Sprintf(format, args...)}
}

// worst are the results that verdicts can be joined to, the worst first.
var worst = []Status{Fail, Unknown, Person, Pass, NotApplicable}

// all joins the verdicts on several servers or nodes: the worst one counts.
func all(names []string, verdicts []Verdict) Verdict {
	if len(verdicts) == 0 {
		return unknown("no server or node was asked")
	}
	for _, status := range worst {
		var found, mend []string
		byCommand := true // each of them is mended by a command of its own
		for i, v := range verdicts {
			if v.Status != status {
				continue
			}
			many := len(verdicts) > 1
			if byCommand = byCommand && v.mend != ""; byCommand {
				mend = append(mend, on(names[i], many, v.mend))
			}
			reason := v.Reason
			if many && status != Pass && status != NotApplicable {
				reason = names[i] + ": " + reason
			}
			if !slices.Contains(found, reason) {
				found = append(found, reason)
			}
		}
		if found == nil {
			continue
		}
		joined := Verdict{Status: status, Reason: some(found)}
		if byCommand {
			joined.mend = strings.Join(mend, "\n")
		}
		return joined
	}
	return Verdict{}
}

// on adds the machine of a command, in a form that may be pasted along.
func on(machine string, oneOfMany bool, command string) string {
	if oneOfMany {
		command += " # on " + machine
	}
	return command
}

// listed bounds the lists in reasons.
const listed = 4

// some joins the first few of a list.
func some(list []string) string {
	if len(list) <= listed {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:listed], ", "), len(list)-listed)
}

// servers judges each server.
func servers(judge func(*Server) Verdict) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		var names []string
		var verdicts []Verdict
		for i := range e.Servers {
			names = append(names, e.Servers[i].Name)
			verdicts = append(verdicts, judge(&e.Servers[i]))
		}
		return all(names, verdicts)
	}
}

// reports judges the report of each server.
func reports(judge func(*ServerReport) Verdict) func(*Evidence) Verdict {
	return servers(func(s *Server) Verdict {
		if s.Report == nil {
			return unknown("no report: %s", s.Silent)
		}
		return judge(s.Report)
	})
}

// flag judges the effective value of a flag. One that this version lacks is "".
func flag(name string, judge func(value string, known bool) Verdict) func(*Evidence) Verdict {
	return reports(func(r *ServerReport) Verdict {
		value, known := r.Flags[name]
		return judge(value, known)
	})
}

// nodes judges each node. Kubelets of others are for a person: this check reads Barque's.
func nodes(judge func(*Node) Verdict) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		var names []string
		var verdicts []Verdict
		for i := range e.Nodes {
			n := &e.Nodes[i]
			names = append(names, n.Name)
			if n.Foreign {
				verdicts = append(verdicts, person("a kubelet of others"))
				continue
			}
			verdicts = append(verdicts, judge(n))
		}
		if len(verdicts) == 0 {
			return none("no server of this cluster runs pods, and it has no agents")
		}
		return all(names, verdicts)
	}
}

// kubelets judges the configuration of each kubelet.
func kubelets(judge func(*Node) Verdict) func(*Evidence) Verdict {
	return nodes(func(n *Node) Verdict {
		if n.Kubelet == nil {
			return unknown("its configuration was not read: %s", n.Silent)
		}
		return judge(n)
	})
}

// answers judges the answers of each server to an administrator.
func answers(judge func(*Answers) Verdict) func(*Evidence) Verdict {
	return servers(func(s *Server) Verdict {
		if s.Answers == nil {
			return unknown("its API was not asked: %s", s.Unasked)
		}
		return judge(s.Answers)
	})
}

// missing is the verdict on an answer that is not there.
func (a *Answers) missing(question string) Verdict {
	if a.Problem != "" {
		return unknown("%s: %s", question, a.Problem)
	}
	return unknown("%s: no answer", question)
}

// both joins two judges of a row: the worst verdict counts.
func both(one, other func(*Evidence) Verdict) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		a, b := one(e), other(e)
		if slices.Index(worst, b.Status) < slices.Index(worst, a.Status) {
			return b
		}
		return a
	}
}

// objects judges the cluster's objects.
func objects(judge func(*Objects) Verdict) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		if e.Objects == nil {
			return unknown("the API was not asked")
		}
		return judge(e.Objects)
	}
}

// machines are the examined ones.
func (e *Evidence) machines() []Machine {
	var out []Machine
	for i := range e.Servers {
		if r := e.Servers[i].Report; r != nil {
			out = append(out, r.Machine)
		}
	}
	if e.Machine != nil {
		out = append(out, *e.Machine)
	}
	return out
}

// rule is what files have to be like.
type rule struct {
	wrong func(File) string // why a file is not; "" where it is
	mend  []string          // the command to which the paths of wrong files are added
}

// files judges the files of some kinds on every examined machine.
func files(kinds []string, absent string, by rule) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		var silent, wrong, mend []string
		for i := range e.Servers {
			if s := &e.Servers[i]; s.Report == nil {
				silent = append(silent, s.Name+": "+s.Silent)
			}
		}
		n, machines := 0, e.machines()
		for _, m := range machines {
			for _, kind := range kinds {
				if why := m.Unseen[kind]; why != "" {
					silent = append(silent, m.Name+": "+why)
				}
			}
			command := by.mend
			for _, f := range m.Files {
				if !slices.Contains(kinds, f.Kind) {
					continue
				}
				n++
				if why := by.wrong(f); why != "" {
					wrong, command = append(wrong, m.Name+":"+f.Path+" "+why), append(slices.Clip(command), f.Path)
				}
			}
			if len(command) == len(by.mend) {
				continue
			}
			mend = append(mend, on(m.Name, len(machines) > 1, terminal.Command(command...)))
		}
		switch {
		case wrong != nil:
			return Verdict{Status: Fail, Reason: some(wrong), mend: strings.Join(mend, "\n")}
		case silent != nil:
			return unknown("%s", some(silent))
		case len(machines) == 0:
			return unknown("no machine was looked at")
		case n == 0:
			return none("%s", absent)
		}
		return pass("%d files", n)
	}
}

// ofNodes judges the files of all nodes. A server sees its own disk only, so agents are for a
// person, who runs the check there.
func ofNodes(judge func(*Evidence) Verdict) func(*Evidence) Verdict {
	return both(judge, func(e *Evidence) Verdict {
		var unseen []string
		for i := range e.Nodes {
			name := e.Nodes[i].Name
			server := slices.ContainsFunc(e.Servers, func(s Server) bool { return s.Name == name })
			if !server && (e.Machine == nil || e.Machine.Name != name) {
				unseen = append(unseen, name)
			}
		}
		if unseen != nil {
			return person("not looked at: %s", some(unseen))
		}
		return none("")
	})
}

// within finds modes with more rights than allowed.
func within(allowed uint32) rule {
	return rule{func(f File) string {
		if uint32(f.Mode.Perm())&^allowed == 0 {
			return ""
		}
		return fmt.Sprintf("has mode %04o", f.Mode.Perm())
	}, []string{"chmod", fmt.Sprintf("%o", allowed)}}
}

// roots finds other owners than root.
var roots = rule{func(f File) string {
	if f.UID == 0 && f.GID == 0 {
		return ""
	}
	return fmt.Sprintf("belongs to %d:%d", f.UID, f.GID)
}, []string{"chown", "root:root"}}
