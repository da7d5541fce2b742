package node

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/join"
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

// auditLosses are those of this server, for its report.
func (s *server) auditLosses() (out []clusterstatus.AuditLoss) {
	for _, l := range s.audit.Losses() {
		out = append(out, clusterstatus.AuditLoss(l))
	}
	return out
}

// auditBackup records a scheduled backup, which nobody requests, as one that this server requests
// of itself.
func (s *server) auditBackup(file string, began time.Time, err error) {
	r := audit.Request{User: s.options.Name, Groups: []string{join.ServersOrganization}, Method: http.MethodPost, URI: backups.SnapshotSavePath, Path: backups.SnapshotSavePath,
		Received: began, Status: http.StatusOK, Annotations: map[string]string{"backup.barque.io/file": file}}
	if err != nil {
		r.Status, r.Reason = http.StatusInternalServerError, err.Error()
	}
	s.audit.Record(r)
}

// annotationPrefix is that of the claims of a joining machine in its event.
const annotationPrefix = "join.barque.io/"

// auditJoining records a request that does not go through the API server's chain.
func (s *server) auditJoining(a join.Audited) {
	source, _, err := net.SplitHostPort(a.Request.RemoteAddr)
	if err != nil {
		source = a.Request.RemoteAddr
	}
	r := audit.Request{User: a.User, Groups: a.Groups, Method: a.Request.Method, URI: a.Request.URL.RequestURI(), Path: a.Request.URL.Path,
		Source: source, UserAgent: a.Request.UserAgent(), Received: a.Received, Status: a.Status, Reason: a.Reason, Annotations: map[string]string{}}
	for name, value := range a.Claims {
		r.Annotations[annotationPrefix+name] = value
	}
	s.audit.Record(r)
}
