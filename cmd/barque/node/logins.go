package node

import (
	"context"
	"maps"
	"slices"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/pages"
	"github.com/barque/barque/internal/lifecycle"
)

// accessParts are those of a server that decide who may do what, and write it down.
type accessParts struct {
	audit       *audit.Log
	logins      *logins.Logins
	authorizers *authorizers.Authorizers
	otherFiles  configfile.Files
	page        *pages.Page
}

// startPage opens the log-ins of the page at /ui, and begins to keep metrics for it.
func (s *server) startPage(ctx context.Context) error {
	s.access.page = pages.New(s.options.Name, s.store)
	return s.stack.Start(ctx, lifecycle.Component{Name: "metrics of the page", Run: s.access.page.Run})
}

// startLogins reads the files about logins and authorization, and goes on looking at them.
func (s *server) startLogins(ctx context.Context) (err error) {
	o, issuers := s.options, []string{s.settings.AccountIssuer()}
	ways, order := o.Logins, o.Authorization
	if ways == nil {
		ways = logins.NewOptions()
	}
	if order == nil {
		order = authorizers.NewOptions()
	}
	s.access.logins, err = logins.New(
		logins.Config{Options: ways, Server: o.Name, Issuers: issuers, Audiences: issuers, OwnCAs: s.ids.Trust.EveryPEM,
			Logger: s.logger.With("part", "logins")})
	if err != nil {
		return err
	}
	if err := s.stack.Start(ctx, lifecycle.Component{Name: "logins", Run: s.access.logins.Run}); err != nil {
		return err
	}
	s.access.authorizers, err = authorizers.New(
		authorizers.Config{Options: order, Server: o.Name, Logger: s.logger.With("part", "authorization")})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "authorization", Run: s.access.authorizers.Run})
}

// configFiles are those of this server that must be the same on all servers, for its report.
func (s *server) configFiles() []clusterstatus.ConfigFile {
	states := s.options.Alike()
	if s.access.logins != nil {
		states = append(states, s.access.logins.Files()...)
	}
	if s.access.authorizers != nil {
		states = append(states, s.access.authorizers.Files()...)
	}
	states = append(states, s.encryption.providers.Files()...)
	out := []clusterstatus.ConfigFile{}
	for _, f := range append(states, s.access.otherFiles.States()...) {
		out = append(out, clusterstatus.ConfigFile(f))
	}
	return out
}

// startOtherFiles looks at the files of the audit log's policy and of admission, which other parts
// read at the start.
func (s *server) startOtherFiles(ctx context.Context) error {
	o := s.options
	paths := map[string]string{"--admission-control-config-file": o.Admission.ConfigFile}
	if o.Audit != nil {
		paths["--audit-policy-file"], paths["--audit-webhook-config-file"] = o.Audit.PolicyFile,
			o.Audit.WebhookOptions.ConfigFile
	}
	for _, flag := range slices.Sorted(maps.Keys(paths)) {
		path := paths[flag]
		if path == "" {
			continue
		}
		file, err := configfile.Fixed(flag, path, s.logger.With("part", "configuration"))
		if err != nil {
			return err
		}
		s.access.otherFiles = append(s.access.otherFiles, file)
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "configuration files", Run: s.access.otherFiles.Run})
}
