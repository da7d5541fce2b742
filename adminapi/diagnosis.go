package adminapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/redact"
	"github.com/barque/barque/raftstore"
)

// Diagnosis collects a server's data for the doctor from these sources.
type Diagnosis struct {
	Self, DataDir string
	Checks        func() []check.Finding // of this machine
	Store         interface {
		Status() raftstore.Status
		Members() []raftstore.Member
	}
	Gossip  func(ctx context.Context) []clusterstatus.NodeView
	Options any // without secrets
	// Paths and Tunnels return the network's findings on the paths to other nodes.
	Paths   func(ctx context.Context) any
	Tunnels func() any
	Logs    interface{ Bytes() []byte } // the end of the log; may be nil
	// Secrets are this server's secrets without a recognizable form. Keys returns the gossip keys.
	// Both are removed from the diagnosis.
	Secrets []string
	Keys    func() [][]byte
}

// ServeHTTP answers with a clusterstatus.Diagnosis.
func (d *Diagnosis) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	extra.Answer(w, http.StatusOK, d.make(r.Context()))
}

func (d *Diagnosis) make(ctx context.Context) *clusterstatus.Diagnosis {
	out := &clusterstatus.Diagnosis{Server: d.Self, Time: time.Now().UTC()}
	var views []clusterstatus.NodeView
	var paths any
	var asking sync.WaitGroup // each waits for answers of the kernel or of other nodes, within its own bound
	asking.Go(func() { views = d.Gossip(ctx) })
	asking.Go(func() { paths = d.Paths(ctx) })
	out.Files = MachineFacts(d.DataDir, d.Checks())
	out.Files["goroutines.txt"] = goroutines()
	out.Files["metrics.txt"] = metricsText()
	out.Files["store.json"] = indented(d.Store.Status())
	out.Files["members.json"] = indented(d.Store.Members())
	out.Files["options.json"] = indented(d.Options)
	out.Files["wireguard.json"] = indented(d.Tunnels())
	out.Files["build.txt"] = buildText()
	if d.Logs != nil {
		out.Files["log.txt"] = string(d.Logs.Bytes())
	}
	asking.Wait()
	out.Files["gossip.json"], out.Files["paths.json"] = indented(views), indented(paths)
	clean := redact.New(d.secrets()...)
	for name, text := range out.Files {
		if name != "metrics.txt" { // numbers
			out.Files[name] = clean.Text(text)
		}
	}
	return out
}

// secrets returns all secrets, in every form in which they may appear.
func (d *Diagnosis) secrets() []string {
	out := append([]string(nil), d.Secrets...)
	for _, key := range d.Keys() {
		out = append(out, string(key), base64.StdEncoding.EncodeToString(key), fmt.Sprintf("%x", key), fmt.Sprint(key))
	}
	return out
}
