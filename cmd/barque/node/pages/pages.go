// Package pages has the parts of a server for the page at /ui.
package pages

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/page"
	"github.com/barque/barque/internal/pagelogin"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/raftstore/register"
)

// folder is the place in the store of the log-ins of the page, outside of the API's objects.
const folder = "/barque/page/"

// Page is the page of a server.
type Page struct {
	Sessions *page.Sessions

	self    string
	history *page.History
}

// New returns the page of the server of that name.
func New(self string, store register.Store) *Page {
	return &Page{Sessions: page.NewSessions(register.NewFolder(store, folder), time.Now), self: self,
		history: page.NewHistory(self, legacyregistry.DefaultGatherer, time.Now)}
}

// Run keeps metrics, until ctx ends.
func (p *Page) Run(ctx context.Context) error { return p.history.Run(ctx) }

// AddHandlers adds the handlers of the page's log-ins and metrics.
func (p *Page) AddHandlers(
	to map[string]http.Handler, servers *adminapi.Servers, relay *adminapi.Relay, logger *slog.Logger,
) {
	logins := &page.Logins{Sessions: p.Sessions, Self: p.self, Version: version.String(), Logger: logger,
		Servers: func() []page.Server {
			out := []page.Server{}
			for _, each := range servers.All() {
				out = append(out, page.Server{Name: each.Name, URL: "https://" + each.API.String()})
			}
			return out
		}}
	logins.AddHandlers(to)
	history := relay.Pass(p.history.ServeHTTP)
	to[pagelogin.HistoryPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet { // before another server is asked
			http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
			return
		}
		history(w, r)
	})
}
