package join

import (
	"context"
	"net/http"
)

// Acts of a Decision.
const (
	ActJoin      = "join"       // of a machine, by a token
	ActRenew     = "renew"      // of an agent's certificates
	ActSharedKey = "shared-key" // a private key that all servers have, to a server
)

// Decision is a grant or a refusal of this server's. Requests beyond the limits of package join are
// not decided.
type Decision struct {
	Act     string
	Granted bool
	Reason  string // of a refusal
	Role    string // of the machine
	Name    string
	Address string // by which other nodes are to reach it
	TokenID string // with ActJoin
	Version string // with ActJoin
	Client  string // HOST:PORT of the connection
}

// decided reports a decision to Config.Decided. A refusal is one with an error.
func (h *Handler) decided(ctx context.Context, r *http.Request, d Decision, err error) {
	if h.config.Decided == nil {
		return
	}
	d.Client, d.Granted = r.RemoteAddr, err == nil
	if err != nil {
		d.Reason = err.Error()
	}
	h.config.Decided(ctx, d)
}
