package node

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/pagelogin"
	"github.com/barque/barque/upgrade/part"
)

// TestTheRoleOfServersHasThePaths: the role by which servers ask each other has the paths that they
// ask for, and no others.
func TestTheRoleOfServersHasThePaths(t *testing.T) {
	want := map[string][]string{
		"get": {auditlog.Path, adminapi.CertificatesPath, clusterstatus.DiagnosisPath, adminapi.EncryptionPath,
			cis.ReportPath, backups.SnapshotsPath, pagelogin.HistoryPath, part.FilesPath, part.NodePath},
		"post": {adminapi.CertificatesPath, part.NodePath},
	}
	roles := rbac.DefaultClusterRoles()
	i := slices.IndexFunc(roles, func(r rbacv1.ClusterRole) bool { return r.Name == clusterusers.ServerClient })
	if i < 0 || len(roles[i].Rules) != len(want) {
		t.Fatalf("role %d", i)
	}
	for _, rule := range roles[i].Rules {
		if len(rule.Verbs) != 1 || len(rule.Resources) > 0 || !slices.Equal(rule.NonResourceURLs, want[rule.Verbs[0]]) {
			t.Errorf("%+v, want %v", rule, want)
		}
	}
}
