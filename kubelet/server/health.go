package server

import (
	"fmt"
	"net/http"
	"sync"
)

// Checks of /healthz, with upstream's names.
const (
	checkPing = "ping"     // the server answers
	checkLoop = "syncloop" // the kubelet looks after its pods
)

// health remembers the last result of the check.
type health struct {
	mu  sync.Mutex
	ill bool
}

// healthz answers 200 and ok while all checks pass, and otherwise 500 with the reason. With
// ?verbose it names the checks. /healthz/NAME asks for one of them.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	only := r.PathValue("check")
	if only != "" && only != checkPing && only != checkLoop {
		http.NotFound(w, r)
		return
	}
	var ill error
	if s.Healthy != nil && only != checkPing {
		ill = s.Healthy()
		s.noteHealth(ill)
	}
	said := ""
	if only == "" {
		said = "[+]" + checkPing + " ok\n"
	}
	switch {
	case ill != nil:
		http.Error(w, fmt.Sprintf("%s[-]%s failed: %v\nhealthz check failed", said, checkLoop, ill),
			http.StatusInternalServerError)
	case only == "" && r.URL.Query().Has("verbose"):
		fmt.Fprintf(w, "%s[+]%s ok\nhealthz check passed\n", said, checkLoop)
	default:
		fmt.Fprint(w, "ok")
	}
}

// noteHealth logs a change of the result.
func (s *Server) noteHealth(err error) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if was := s.health.ill; was == (err != nil) {
		return
	}
	if s.health.ill = err != nil; err != nil {
		s.Logger.Error("this kubelet is ill: its /healthz fails", "check", checkLoop, "err", err)
		return
	}
	s.Logger.Info("this kubelet is well again")
}
