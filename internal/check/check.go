// Package check has the type in which every package reports its requirements of the machine.
// `barque check` prints them together.
package check

// Finding is the answer to one question about the machine.
type Finding struct {
	// Name of the check's subject, such as "overlayfs".
	Name string `json:"name"`
	// OK means that Barque can run with this finding.
	OK bool `json:"ok"`
	// Doubt means that Barque may run, and that a part of its uses is uncertain or broken.
	Doubt bool `json:"doubt,omitempty"`
	// Detail is the finding in a few words.
	Detail string `json:"detail,omitempty"`
	// Remedy is the next step; empty when there is none.
	Remedy string `json:"remedy,omitempty"`
}

// Passed returns a Finding that is fine.
func Passed(name, detail string) Finding {
	return Finding{Name: name, OK: true, Detail: detail}
}

// Doubtful returns a Finding of a possible or partial obstacle.
func Doubtful(name, detail, remedy string) Finding {
	return Finding{Name: name, OK: true, Doubt: true, Detail: detail, Remedy: remedy}
}

// Failed returns a Finding that keeps Barque from running.
func Failed(name, detail, remedy string) Finding {
	return Finding{Name: name, Detail: detail, Remedy: remedy}
}
