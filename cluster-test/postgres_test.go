package clustertest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/registry"
)

// database is PostgreSQL with a volume of the default class, and a client on another node that adds
// rows.
type database struct{ *Space }

// TestPostgres: every row that the database has acknowledged is there after its process, its pod,
// the processes of its node and of the leader were killed, and after its machine has lost power.
func TestPostgres(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	made, err := images.ForPostgres(ctx)
	if err != nil {
		t.Fatal(err)
	}
	server, err := registry.New(ctx, made)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the cluster
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	c := Start(t, Options{Registry: server, DiskMegabytes: 800, NodeArgs: fastTimes})
	d := database{NewSpace(t, c)}
	d.install()
	d.Run("the process", func(*Space) {
		KillContainer(d, d.Pod("db-0").Status.ContainerStatuses[0].ContainerID)
		d.waitRows()
	})
	d.Run("the pod", func(*Space) {
		d.K("delete", "pod", "db-0", "--grace-period=0", "--force")
		d.waitRows()
	})
	d.Run("the node's process", func(*Space) {
		node := d.Pod("db-0").Spec.NodeName
		d.kill(node)
		d.waitRows() // its pods go on, also when the cluster takes them for not ready
		d.start(node)
		d.waitRows()
	})
	d.Run("the leader", func(*Space) {
		node := d.Leader(d)
		d.kill(node)
		if node != d.Pod("client").Spec.NodeName { // whose log could not be read
			d.waitRows()
		}
		d.start(node)
		d.waitRows()
	})
	d.Run("the machine", func(*Space) {
		node := d.Pod("db-0").Spec.NodeName
		if err := d.KillMachine(d.Context(), node); err != nil {
			d.Fatal(err)
		}
		d.start(node)
		d.waitRows()
	})
	d.check()
}

func (d database) install() {
	d.Apply(`
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 10
      securityContext: {runAsUser: 999, runAsGroup: 999, fsGroup: 999}
      containers:
      - name: postgres
        image: ` + images.Postgres + `
        command:
        - sh
        - -ec
        - |
          if [ ! -d $PGDATA ]; then
            rm -rf $PGDATA.new
            initdb --no-locale --encoding=UTF8 --username=postgres --auth=trust --pgdata=$PGDATA.new
            echo "host all all all trust" >> $PGDATA.new/pg_hba.conf
            sync
            mv $PGDATA.new $PGDATA
          fi
          chmod 700 $PGDATA # as the official image does: fsGroup lets the group in
          exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=16MB -c dynamic_shared_memory_type=mmap -c jit=off
        readinessProbe: {exec: {command: [psql, -h, /tmp, -U, postgres, -c, select 1]}, periodSeconds: 2, timeoutSeconds: 10}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
`)
	pod := d.WaitReady("db-0")
	d.query("create table if not exists rows (n int primary key)")
	elsewhere := slices.DeleteFunc(slices.Clone(d.Nodes()), func(n string) bool { return n == pod.Spec.NodeName })[0]
	d.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: ` + elsewhere + `
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: client
    image: ` + images.Postgres + `
    env: [{name: PGCONNECT_TIMEOUT, value: "5"}]
    command: [sh, -c, ` + strconv.Quote(insertRows) + `]
`)
	d.waitRows()
}

// insertRows prints the number of each row that was acknowledged. A failed insert is not tried
// again: its row may be there.
//
// brief: a row that is not answered is given up
const insertRows = `n=0
while n=$((n+1)); do
  if timeout 10 psql -h db-0.db -U postgres -qc "insert into rows values ($n)" 2>/dev/null; then echo $n; else sleep 0.2; fi
done`

// query asks the database in its pod.
func (d database) query(text string) string {
	d.Helper()
	out := ""
	Eventually(d, deadline, text, func(context.Context) error {
		r := d.KResult("exec", "db-0", "--", "psql", "-h", "/tmp", "-U", "postgres", "-Atc", text)
		out = r.Out
		return r.Error
	})
	return out
}

// acknowledged are the rows that the client was promised.
func (d database) acknowledged() ([]int, error) {
	r := d.KResult("logs", "client")
	if r.Error != nil {
		return nil, r.Error
	}
	var rows []int
	for _, line := range strings.Fields(r.Out) {
		n, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("the client says %q", line)
		}
		rows = append(rows, n)
	}
	return rows, nil
}

// waitRows waits until twenty more rows are acknowledged.
func (d database) waitRows() {
	d.Helper()
	first := -1
	Eventually(d, 2*deadline, "more rows", func(context.Context) error { // a node that has lost power begins anew
		rows, err := d.acknowledged()
		if err != nil {
			return err
		}
		if first < 0 {
			first = len(rows)
		}
		if len(rows) < first+20 {
			return fmt.Errorf("%d rows were acknowledged, %d of them now", len(rows), len(rows)-first)
		}
		return nil
	})
}

func (d database) kill(node string) {
	d.Helper()
	if err := d.KillNodes(d.Context(), node); err != nil {
		d.Fatal(err)
	}
}

func (d database) start(node string) {
	d.Helper()
	if err := d.StartNode(d.Context(), node); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, node, corev1.ConditionTrue, deadline)
}

// check holds the rows in the database against the acknowledged ones.
func (d database) check() {
	rows, err := d.acknowledged()
	if err != nil {
		d.Fatal(err)
	}
	have := map[string]bool{}
	for _, n := range strings.Fields(d.query("select n from rows")) {
		have[n] = true
	}
	lost := slices.DeleteFunc(slices.Clone(rows), func(n int) bool { return have[strconv.Itoa(n)] })
	d.Logf("%d rows were acknowledged, %d are there", len(rows), len(have))
	if len(lost) > 0 || len(rows) < 120 {
		d.Errorf("%d of %d acknowledged rows are lost: %v", len(lost), len(rows), lost)
	}
}
