package node

import (
	"context"
	"errors"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/adminapi/hardening"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/pki"
)

// hardening is this server's report for the rows of a benchmark.
func (s *server) hardening(ctx context.Context) (*cis.ServerReport, error) {
	machine := hardening.Examine(s.options.Name, s.options.Place())
	cipher, unknown := s.secretsCipher(ctx)
	r := &cis.ServerReport{
		Flags: s.options.Flags, Plugins: s.options.Admission.Running(), Controllers: groupsOfParts(s.api.Identities()),
		Clients: s.ids.ClientGroups(), Encryption: cipher, EncryptionProblem: unknown, Machine: machine,
		Profile: s.options.Profile,
		Audit: cis.Audit{File: s.access.audit.File, Stdout: s.access.audit.Stdout,
			Webhook: s.options.Audit != nil && s.options.Audit.WebhookOptions.ConfigFile != "",
			Levels:  map[string]string{}},
		PeerCAs: string(s.ids.Trust.PEMFor(pki.Peers)),
	}
	name, err := s.ids.KubeletClientUser()
	tried := s.ids.TryKubelets(ctx)
	r.KubeletClient = cis.KubeletClient{User: name, Verified: tried == nil}
	if err = errors.Join(err, tried); err != nil {
		r.KubeletClient.Problem = err.Error()
	}
	someone := &user.DefaultInfo{Name: "someone", Groups: []string{user.AllAuthenticated}}
	for _, request := range cis.Audited {
		verb, resource, _ := strings.Cut(request, " ")
		r.Audit.Levels[request] = s.access.audit.LevelOf(someone, verb, resource)
	}
	return r, nil
}
