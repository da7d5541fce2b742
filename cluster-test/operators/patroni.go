package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const patroniImage = "docker.io/library/patroni:debian"

// patroni is Debian's, which has no manifests: those here are after its documentation.
var patroni = program{
	name: "Patroni", version: "3.0.2 (Debian 12)",
	scenario: "three PostgreSQL elect a primary by an Endpoints object; it stays primary through the leader's death, and a row " +
		"that was written through the selectorless Service is on all three",
	images:     []workshop.Image{{Name: patroniImage, Foreign: debianPatroni}},
	namespaces: []string{"patroni"},
	install: func(ctx context.Context, s *site) error {
		if err := s.apply(ctx, patroniManifests); err != nil {
			return err
		}
		return s.until(ctx, "the table", func(ctx context.Context) error {
			_, err := s.patroniWrite(ctx, "create table if not exists rounds (name text primary key)")
			return err
		})
	},
	begin: func(ctx context.Context, s *site, _ round) (err error) {
		s.noted, err = s.patroniPrimary(ctx)
		return err
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "the row", func(ctx context.Context) error {
			_, err := s.patroniWrite(ctx, fmt.Sprintf("insert into rounds values ('%s') on conflict do nothing", r))
			return err
		}); err != nil {
			return err
		}
		if err := s.until(ctx, "the rows on all", func(ctx context.Context) error {
			for _, pod := range []string{"patroni-0", "patroni-1", "patroni-2"} {
				rows, err := s.kubectl(ctx, "exec", "-n", "patroni", pod, "--", "psql", "-h", "/tmp", "-U", "postgres", "-Atqc", "select name from rounds order by name")
				if err != nil {
					return err
				}
				if want := strings.Join(r.past(), "\n"); rows != want {
					return fmt.Errorf("%s has %q, want %q", pod, rows, want)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		// Machines that lost power may elect another one.
		if primary, err := s.patroniPrimary(ctx); err != nil || r != restarted && primary != s.noted {
			return errors.Join(err, fmt.Errorf("the primary was %s, and is %s", s.noted, primary))
		}
		return nil
	},
}

// patroniWrite runs a statement through the Service.
func (s *site) patroniWrite(ctx context.Context, statement string) (string, error) {
	return s.kubectl(ctx, "exec", "-n", "patroni", "patroni-0", "--", "psql", "-h", "patroni", "-U", "postgres", "-Atqc", statement)
}

// patroniPrimary is the pod that Patroni has labelled.
func (s *site) patroniPrimary(ctx context.Context) (name string, err error) {
	return name, s.until(ctx, "one primary", func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods("patroni").List(ctx, metav1.ListOptions{LabelSelector: "role=master"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		name = pods.Items[0].Name
		return nil
	})
}

// debianPatroni has PostgreSQL's server and programs, and Patroni, which finds them on the PATH.
func debianPatroni(ctx context.Context) (images.Foreign, error) {
	version, err := images.PostgresVersion(ctx)
	if err != nil {
		return images.Foreign{}, err
	}
	f := images.Foreign{
		Shell: true, Packages: []string{"postgresql-" + version, "postgresql-client-" + version, "patroni", "python3", "python3-minimal"},
		Users:  []string{"postgres:x:999:999:PostgreSQL:/var/lib/postgresql:/bin/sh"},
		Dirs:   []string{"var/lib/postgresql", "run/postgresql", "var/run/postgresql"},
		Links:  map[string]string{},
		Config: v1.Config{User: "999:999", Env: []string{"PYTHONDONTWRITEBYTECODE=1"}},
	}
	for _, program := range []string{
		"initdb", "pg_basebackup", "pg_controldata", "pg_ctl", "pg_isready", "pg_rewind", "postgres", "psql",
	} {
		f.Links[path.Join("usr/bin", program)] = "../lib/postgresql/" + version + "/bin/" + program
	}
	return f, nil
}

const patroniManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: patroni}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: patroni, namespace: patroni}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: patroni, namespace: patroni}
rules:
- {apiGroups: [""], resources: [endpoints], verbs: [create, get, list, patch, update, watch, delete, deletecollection]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, patch, update, watch]}
- {apiGroups: [""], resources: [services], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: patroni, namespace: patroni}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: patroni}
subjects: [{kind: ServiceAccount, name: patroni}]
---
apiVersion: v1
kind: Service
metadata: {name: patroni, namespace: patroni, labels: {application: patroni, cluster-name: patroni}}
spec: {type: ClusterIP, ports: [{port: 5432, targetPort: 5432}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: patroni, namespace: patroni}
data:
  patroni.yml: |
    bootstrap:
      dcs:
        postgresql: {use_pg_rewind: true, parameters: {shared_buffers: 16MB, jit: "off", dynamic_shared_memory_type: mmap}}
      initdb: [{auth-host: trust}, {auth-local: trust}, {encoding: UTF8}, {locale: C}, data-checksums]
      pg_hba: [local all all trust, host all all all trust, host replication all all trust]
    postgresql:
      data_dir: /data/pg
      bin_dir: /usr/bin
      pgpass: /tmp/pgpass
      parameters: {unix_socket_directories: /tmp}
      authentication: {superuser: {username: postgres}, replication: {username: standby, password: standby}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: patroni, namespace: patroni}
spec:
  replicas: 3
  serviceName: patroni
  podManagementPolicy: Parallel
  selector: {matchLabels: {application: patroni, cluster-name: patroni}}
  template:
    metadata: {labels: {application: patroni, cluster-name: patroni}}
    spec:
      serviceAccountName: patroni
      terminationGracePeriodSeconds: 10
      # Always would open PostgreSQL's directory to the group at each start, which it refuses.
      securityContext: {runAsUser: 999, runAsGroup: 999, fsGroup: 999, fsGroupChangePolicy: OnRootMismatch}
      containers:
      - name: patroni
        image: ` + patroniImage + `
        command: [python3, /usr/bin/patroni, /etc/patroni/patroni.yml]
        readinessProbe: {httpGet: {path: /readiness, port: 8008}, periodSeconds: 5, timeoutSeconds: 5}
        ports: [{containerPort: 8008}, {containerPort: 5432}]
        env:
        - {name: PATRONI_KUBERNETES_POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: PATRONI_KUBERNETES_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: PATRONI_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: PATRONI_KUBERNETES_USE_ENDPOINTS, value: "true"}
        - {name: PATRONI_KUBERNETES_LABELS, value: "{application: patroni, cluster-name: patroni}"}
        - {name: PATRONI_SCOPE, value: patroni}
        - {name: PATRONI_POSTGRESQL_LISTEN, value: "0.0.0.0:5432"}
        - {name: PATRONI_RESTAPI_LISTEN, value: "0.0.0.0:8008"}
        - {name: PATRONI_POSTGRESQL_CONNECT_ADDRESS, value: "$(PATRONI_KUBERNETES_POD_IP):5432"}
        - {name: PATRONI_RESTAPI_CONNECT_ADDRESS, value: "$(PATRONI_KUBERNETES_POD_IP):8008"}
        volumeMounts: [{name: data, mountPath: /data}, {name: config, mountPath: /etc/patroni}]
      volumes: [{name: config, configMap: {name: patroni}}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 200Mi}}}
`
