// Package check holds the one type in which every package reports its requirements of the machine,
// for `barque check` to print together.
package check

// Finding is the answer to one question about the machine.
type Finding struct {
	// Name of what was looked for, such as "overlayfs".
	Name string `json:"name"`
	// OK tells whether Barque can run with what was found.
	OK bool `json:"ok"`
	// Doubt tells that Barque may run, and that something is open or wrong for a part of its uses.
	Doubt bool `json:"doubt,omitempty"`
	// Detail is what was found, in a few words.
	Detail string `json:"detail,omitempty"`
	// Remedy is what to do next; empty when there is nothing to do.
	Remedy string `json:"remedy,omitempty"`
}

// Passed returns a Finding that is fine.
func Passed(name, detail string) Finding {
	return Finding{Name: name, OK: true, Detail: detail}
}

// Doubtful returns a Finding that keeps Barque from running only perhaps, or only in part.
func Doubtful(name, detail, remedy string) Finding {
	return Finding{Name: name, OK: true, Doubt: true, Detail: detail, Remedy: remedy}
}

// Failed returns a Finding that keeps Barque from running.
func Failed(name, detail, remedy string) Finding {
	return Finding{Name: name, Detail: detail, Remedy: remedy}
}
