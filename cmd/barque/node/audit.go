package node

import (
	"context"
	"path/filepath"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/internal/lifecycle"
)

// auditFile is the default path of the audit log.
func auditFile(dataDir string) string { return filepath.Join(dataDir, "audit", "audit.log") }

// startAudit opens the audit log. It stops after the API server, so that no event is late.
func (s *server) startAudit(ctx context.Context) (err error) {
	options := s.options.Audit
	if options == nil {
		options = audit.NewOptions()
	}
	s.audit, err = audit.New(options, auditFile(s.options.DataDir), s.logger.With("part", "audit"))
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "audit log", Run: s.audit.Run, StopTimeout: audit.StopTimeout})
}
