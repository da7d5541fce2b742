package clusterstatus

import "time"

// DiagnosisPath answers with a Diagnosis of the server that gets the request, or of the one that
// RelayParameter names. It is for system:masters only: logs and goroutines tell more of a cluster
// than RBAC can know of.
const DiagnosisPath = "/barque/v1/diagnosis"

// Diagnosis is what one server can tell of itself for a search for faults. There are no secrets in
// it.
type Diagnosis struct {
	Server string    `json:"server"`
	Time   time.Time `json:"time"`
	// Files have their content by their name.
	Files map[string]string `json:"files"`
}
