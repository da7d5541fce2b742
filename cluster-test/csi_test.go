package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/csidriver"
	"github.com/barque/barque/internal/needs"
)

// csiDriver is the tests' driver on a cluster, installed as drivers are: a DaemonSet with the
// driver, and Deployments with the sidecars, each with the permissions that its authors ship. The
// driver registers by itself, as node-driver-registrar does for others: that program's module
// cannot be had everywhere.
type csiDriver struct {
	*Space
	programs string // directory of the driver and the sidecars
	shared   string // the driver's volumes, of all nodes
}

const csiName = "csi.test.barque.io"

// TestCSI installs a CSI driver with unmodified sidecars. Its volumes go from node to node, grow in
// use, and outlive pods, nodes' processes and the sidecars that lead.
func TestCSI(t *testing.T) {
	programs := os.Getenv("CSI_PROGRAMS")
	if programs == "" {
		needs.Missing(t, "the sidecars of CSI drivers in CSI_PROGRAMS (run `make test-csi`)",
			"CSI drivers with the sidecars that authors ship")
	}
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	shared, err := os.MkdirTemp("", "bq-csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the cluster
		if err := os.RemoveAll(shared); err != nil {
			t.Error(err)
		}
	})
	c := Start(t, Options{Registry: images, DiskMegabytes: 400, NodeArgs: fastTimes})
	for _, node := range c.Nodes() { // as systemd has all mounts; each node's directories are on a disk of its own
		if err := unix.Mount("", c.DataDir(node), "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
	}
	d := &csiDriver{NewSpace(t, c), programs, shared}
	d.install()
	t.Cleanup(d.judge)
	d.Run("claim", func(*Space) { d.claim() })
	d.Run("grow", func(*Space) { d.grow() })
	d.Run("move", func(*Space) { d.move() })
	d.Run("restart the node", func(*Space) { d.restartNode() })
	d.Run("the sidecars that lead end", func(*Space) { d.endLeaders() })
	d.Run("delete", func(*Space) { d.remove() })
}

// install applies the authors' manifests, and waits until the driver runs.
func (d *csiDriver) install() {
	d.Helper()
	for _, sidecar := range []string{"external-attacher", "external-provisioner", "external-resizer"} {
		rbac, err := os.ReadFile(filepath.Join(d.programs, sidecar+"-rbac.yaml"))
		if err != nil {
			d.Fatal(err)
		}
		// "replace with non-default namespace name"
		d.Apply(strings.ReplaceAll(string(rbac), "namespace: default", "namespace: "+d.Namespace))
		d.Apply(d.controller(strings.Replace(sidecar, "external", "csi", 1)))
	}
	d.Apply(`
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + csiName + `}
spec: {attachRequired: true, podInfoOnMount: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: csi-test}
provisioner: ` + csiName + `
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
`)
	d.Cleanup(func() {
		d.KubectlResult(context.Background(), "", "delete", "csidriver/"+csiName, "storageclass/csi-test")
	})
	for _, node := range d.Nodes() {
		d.Apply(d.node(node))
	}
	for _, node := range d.Nodes() {
		Eventually(d, deadline, "the driver in the CSINode object of "+node, func(ctx context.Context) error {
			have, err := d.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
			if err == nil && (len(have.Spec.Drivers) != 1 || have.Spec.Drivers[0].NodeID != node) {
				err = fmt.Errorf("it names %+v", have.Spec.Drivers)
			}
			return err
		})
	}
	for _, name := range []string{"csi-attacher", "csi-provisioner", "csi-resizer"} {
		d.K("rollout", "status", "deployment/"+name, "--timeout=110s")
	}
}

// controller is a Deployment of a sidecar beside the driver.
func (d *csiDriver) controller(sidecar string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      serviceAccountName: %[1]s
      terminationGracePeriodSeconds: 1
      containers:
      - name: driver
        image: busybox:1.36
        command: [/programs/csi-driver, --shared, --root=/shared, --socket=/csi/csi.sock]
        volumeMounts: [{name: programs, mountPath: /programs}, {name: shared, mountPath: /shared}, {name: socket, mountPath: /csi}]
      - name: sidecar
        image: busybox:1.36
        command: [/programs/%[1]s, --csi-address=/csi/csi.sock, --leader-election, --v=5]
        env: [{name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
        volumeMounts: [{name: programs, mountPath: /programs}, {name: socket, mountPath: /csi}]
      volumes:
      - {name: programs, hostPath: {path: %[2]s, type: Directory}}
      - {name: shared, hostPath: {path: %[3]s, type: Directory}}
      - {name: socket, emptyDir: {}}
`, sidecar, d.programs, d.shared)
}

// node is the driver on a node. It is a DaemonSet of its own, since the nodes of a dev cluster have
// the kubelet's directory at places of their own.
func (d *csiDriver) node(node string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: csi-node-%[1]s}
spec:
  selector: {matchLabels: {app: csi-node-%[1]s}}
  template:
    metadata: {labels: {app: csi-node-%[1]s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[1]s}
      priorityClassName: system-node-critical
      terminationGracePeriodSeconds: 1
      containers:
      - name: driver
        image: busybox:1.36
        securityContext: {privileged: true}
        command: [/programs/csi-driver, --shared, --root=/shared, --node=%[1]s,
          --socket=%[2]s/plugins/%[3]s/csi.sock, --registration=/registration/%[3]s-reg.sock]
        volumeMounts:
        - {name: programs, mountPath: /programs}
        - {name: shared, mountPath: /shared}
        - {name: registration, mountPath: /registration}
        - {name: kubelet, mountPath: %[2]s, mountPropagation: Bidirectional}
      volumes:
      - {name: programs, hostPath: {path: %[4]s, type: Directory}}
      - {name: shared, hostPath: {path: %[5]s, type: Directory}}
      - {name: kubelet, hostPath: {path: %[2]s, type: Directory}}
      - {name: registration, hostPath: {path: %[2]s/plugins_registry, type: Directory}}
`, node, filepath.Join(d.DataDir(node), "kubelet"), csiName, d.programs, d.shared)
}

// use runs a pod with the claim on a node.
func (d *csiDriver) use(pod, claim, node string) *corev1.Pod {
	d.Helper()
	d.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "echo of %[1]s >> /data/log; sleep 36000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %[3]s}}
`, pod, node, claim))
	return d.WaitReady(pod)
}

func (d *csiDriver) apply(claim string) {
	d.Helper()
	d.Apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ` + claim + `}
spec: {storageClassName: csi-test, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`)
}

// log is the log file that the pods with the claim have written, read in a pod.
func (d *csiDriver) log(pod, want string) {
	d.Helper()
	Eventually(d, deadline, "the log in "+pod, func(context.Context) error {
		if r := d.KResult("exec", pod, "--", "cat", "/data/log"); r.Error != nil || r.Out != want {
			return fmt.Errorf("it says %q, want %q (%w)", r.Out, want, r.Error)
		}
		return nil
	})
}

// attached lists the nodes to which volumes are attached.
func (d *csiDriver) attached(ctx context.Context) ([]string, error) {
	list, err := d.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, a := range list.Items {
		if a.Spec.Attacher == csiName && a.Status.Attached {
			nodes = append(nodes, a.Spec.NodeName)
		}
	}
	return nodes, nil
}

func (d *csiDriver) claim() {
	d.apply("data")
	d.use("first", "data", d.Nodes()[0])
	d.log("first", "of first\n")
	if nodes, err := d.attached(d.Context()); err != nil || len(nodes) != 1 || nodes[0] != d.Nodes()[0] {
		d.Errorf("attached to %v: %v", nodes, err)
	}
}

// grow enlarges the claim while a pod has it.
func (d *csiDriver) grow() {
	d.K("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"3Mi"}}}}`)
	// the node looks once a minute
	Eventually(d, 2*deadline, "the new size in the claim's status", func(context.Context) error {
		if got := strings.TrimSpace(
			d.K("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}")); got != "3Mi" {
			return fmt.Errorf("it says %s", got)
		}
		return nil
	})
	state := d.state()
	for id, v := range state {
		if v.Size != 3<<20 {
			d.Errorf("volume %s has %d bytes by the driver", id, v.Size)
		}
	}
}

// move has the volume used on another node.
func (d *csiDriver) move() {
	d.K("delete", "pod", "first")
	d.use("second", "data", d.Nodes()[1])
	d.log("second", "of first\nof second\n")
	Eventually(d, deadline, "one attachment", func(ctx context.Context) error {
		nodes, err := d.attached(ctx)
		if err == nil && (len(nodes) != 1 || nodes[0] != d.Nodes()[1]) {
			err = fmt.Errorf("attached to %v", nodes)
		}
		return err
	})
}

// restartNode kills the node's process and its containerd under a pod with a volume.
func (d *csiDriver) restartNode() {
	node := d.Nodes()[1]
	before := d.Pod("second").Status.ContainerStatuses[0].ContainerID
	if err := d.KillNodes(d.Context(), node); err != nil {
		d.Fatal(err)
	}
	if err := d.StartNode(d.Context(), node); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, node, corev1.ConditionTrue, deadline)
	d.log("second", "of first\nof second\n")
	if pod := d.WaitReady("second"); pod.Status.ContainerStatuses[0].ContainerID != before {
		d.Errorf("the container is %s, was %s", pod.Status.ContainerStatuses[0].ContainerID, before)
	}
	// The node remembers its staged volumes.
	d.K("delete", "pod", "second")
	Eventually(d, deadline, "the volume detached", func(ctx context.Context) error {
		nodes, err := d.attached(ctx)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("attached to %v", nodes)
		}
		return err
	})
}

// endLeaders ends the sidecars that lead; the others take over by their leases.
func (d *csiDriver) endLeaders() {
	leases, err := d.Client.CoordinationV1().Leases(d.Namespace).List(d.Context(), metav1.ListOptions{})
	if err != nil {
		d.Fatal(err)
	}
	ended := 0
	for _, lease := range leases.Items {
		if holder := lease.Spec.HolderIdentity; holder != nil && strings.HasPrefix(*holder, "csi-") {
			pod := *holder
			if r := d.KResult("delete", "pod", pod, "--grace-period=0", "--force"); r.Error != nil {
				d.Errorf("lease %s is held by %s: %v", lease.Name, pod, r.Error)
			}
			ended++
		}
	}
	if ended != 3 {
		d.Errorf("%d of 3 sidecars lead", ended)
	}
	d.apply("more")
	d.use("third", "more", d.Nodes()[2])
	d.log("third", "of third\n")
}

// remove deletes claims, and with them their volumes.
func (d *csiDriver) remove() {
	d.K("delete", "pods", "-l", "!app")
	d.K("delete", "pvc", "--all")
	Eventually(d, deadline, "the volumes to go", func(ctx context.Context) error {
		list, err := d.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d PersistentVolumes are there, %s is %s", len(list.Items), list.Items[0].Name,
				list.Items[0].Status.Phase)
		}
		if left := d.state(); err == nil && len(left) > 0 {
			err = fmt.Errorf("the driver has %d volumes", len(left))
		}
		return err
	})
	if left, err := filepath.Glob(filepath.Join(d.shared, "volumes", "*")); err != nil || len(left) > 0 {
		d.Errorf("the driver's directory has %v: %v", left, err)
	}
}

// state returns the driver's records of its volumes.
func (d *csiDriver) state() map[string]struct {
	Size int64 `json:"size"`
} {
	d.Helper()
	var state struct {
		Volumes map[string]struct {
			Size int64 `json:"size"`
		} `json:"volumes"`
	}
	raw, err := os.ReadFile(filepath.Join(d.shared, "state.json"))
	if err == nil {
		err = json.Unmarshal(raw, &state)
	}
	if err != nil {
		d.Fatal(err)
	}
	return state.Volumes
}

// judge reports requests that the driver must never get, and got.
func (d *csiDriver) judge() {
	raw, err := os.ReadFile(filepath.Join(d.shared, csidriver.Violations))
	if err == nil {
		d.Errorf("the driver was asked what nobody may ask:\n%s", raw)
	} else if !errors.Is(err, fs.ErrNotExist) {
		d.Error(err)
	}
}
