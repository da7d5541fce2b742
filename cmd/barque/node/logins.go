package node

import (
	"context"
	"maps"
	"slices"

	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/lifecycle"
)

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
	s.logins, err = logins.New(
		logins.Config{Options: ways, Server: o.Name, Issuers: issuers, Audiences: issuers, OwnCAs: s.ids.Trust.EveryPEM,
			Logger: s.logger.With("part", "logins")})
	if err != nil {
		return err
	}
	if err := s.stack.Start(ctx, lifecycle.Component{Name: "logins", Run: s.logins.Run}); err != nil {
		return err
	}
	s.authorizers, err = authorizers.New(
		authorizers.Config{Options: order, Server: o.Name, Logger: s.logger.With("part", "authorization")})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "authorization", Run: s.authorizers.Run})
}

// configFiles are those of this server that must be the same on all servers, for its report.
func (s *server) configFiles() []clusterstatus.ConfigFile {
	states := s.options.Alike()
	if s.logins != nil {
		states = append(states, s.logins.Files()...)
	}
	if s.authorizers != nil {
		states = append(states, s.authorizers.Files()...)
	}
	states = append(states, s.providers.Files()...)
	out := []clusterstatus.ConfigFile{}
	for _, f := range append(states, s.otherFiles.States()...) {
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
		s.otherFiles = append(s.otherFiles, file)
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "configuration files", Run: s.otherFiles.Run})
}
