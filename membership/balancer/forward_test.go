package balancer

import (
	"encoding/pem"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/barque/barque/internal/connlimit"
)

// TestForwardRefuses wrong arguments, and names the remedy.
func TestForwardRefuses(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for says, cas := range map[string][]byte{"no CA certificate": nil, "choose another address with --listen": ca} {
		if err := Forward(t.Context(), taken.Addr().String(), nil, cas, connlimit.Limits{},
			slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want %q", err, says)
		}
	}
}
