package clusterstatus

import "time"

// DiagnosisPath answers with a Diagnosis of the server that gets the request, or of the one in
// RelayParameter. It is for system:masters only: RBAC has no rule for the contents of logs and
// goroutines.
const DiagnosisPath = "/barque/v1/diagnosis"

// Diagnosis is one server's data for the search for faults. It has no secrets.
type Diagnosis struct {
	Server string    `json:"server"`
	Time   time.Time `json:"time"`
	// Files have their content by their name.
	Files map[string]string `json:"files"`
}
