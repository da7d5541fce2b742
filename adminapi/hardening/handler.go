package hardening

import (
	"context"
	"net/http"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus/cis"
)

// Handler serves cis.ReportPath.
func Handler(report func(context.Context) (*cis.ServerReport, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		is, err := report(r.Context())
		if err != nil {
			http.Error(w, "this server cannot report on itself: "+err.Error(), http.StatusInternalServerError)
			return
		}
		extra.Answer(w, http.StatusOK, is)
	}
}
