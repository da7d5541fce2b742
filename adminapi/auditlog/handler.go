package auditlog

import (
	"net/http"

	"github.com/barque/barque/apiserver/extra"
)

// atOnce bounds the searches of a server: each reads hundreds of megabytes.
const atOnce = 2

// Handler searches the log of this server. path is the log's file, "" without one.
func Handler(server, path string) http.HandlerFunc {
	turns := make(chan struct{}, atOnce)
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := Parse(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if path == "" {
			http.Error(w, "server "+server+" writes no audit file: see --audit-log-path", http.StatusNotFound)
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-r.Context().Done():
			return
		}
		answer, err := Search(r.Context(), server, path, q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		extra.Answer(w, http.StatusOK, answer)
	}
}
