package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	storage "k8s.io/component-helpers/storage/volume"

	"github.com/barque/barque/controllers/controllertest"
)

// start runs the binder over objects. remove deletes directories of the host.
func start(t *testing.T, remove func(string) error, objects ...kruntime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(t, objects...)
	ctrl, err := New(Config{Informers: c.Informers, RemoveAll: remove})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

func nothing(string) error { return errors.New("nothing is to be deleted") }

func claimIs(t *testing.T, c *controllertest.Cluster, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func volumeIs(t *testing.T, c *controllertest.Cluster, name string) *corev1.PersistentVolume {
	t.Helper()
	volume, err := c.Client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return volume
}

func eventually(t *testing.T, c *controllertest.Cluster, claim string, phase corev1.PersistentVolumeClaimPhase) {
	t.Helper()
	controllertest.Eventually(t, fmt.Sprintf("claim %s is %s", claim, phase),
		func() bool { return claimIs(t, c, claim).Status.Phase == phase })
}

// messages are the events about an object.
func messages(t *testing.T, c *controllertest.Cluster, name string) []string {
	t.Helper()
	list, err := c.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name {
			out = append(out, e.Reason)
		}
	}
	slices.Sort(out)
	return out
}

func TestBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, nothing, aVolume("v", "2Gi", volumeIn(corev1.VolumePending)),
			aClaim("c", "1Gi", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = "" }))
		eventually(t, c, "c", corev1.ClaimBound)
		synctest.Wait()
		checkBinding(t, volumeIs(t, c, "v"), claimIs(t, c, "c"))
		// It is retained when its claim goes, and free again when the user says so.
		if err := c.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "c",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the volume is released",
			func() bool { return volumeIs(t, c, "v").Status.Phase == corev1.VolumeReleased })
		freed := volumeIs(t, c, "v")
		freed.Spec.ClaimRef = nil
		if _, err := c.Client.CoreV1().PersistentVolumes().Update(t.Context(), freed,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the volume is available",
			func() bool { return volumeIs(t, c, "v").Status.Phase == corev1.VolumeAvailable })
	})
}

// TestCrowd: many claims come at once. Each gets its own volume at the first attempt.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []kruntime.Object
		for i := range 30 {
			objects = append(objects, aClaim(fmt.Sprintf("c%02d", i), "1Gi"), aVolume(fmt.Sprintf("v%02d", i), "1Gi"))
		}
		c := start(t, nothing, objects...)
		for i := range 30 {
			eventually(t, c, fmt.Sprintf("c%02d", i), corev1.ClaimBound)
		}
		updates := 0
		for _, a := range c.Client.Actions() {
			if a.Matches("update", "persistentvolumes") && a.GetSubresource() == "" {
				updates++
			}
		}
		if updates != 30 {
			t.Errorf("volumes were written %d times to bind 30 claims", updates)
		}
	})
}

// TestNewVolume: a waiting claim gets a volume as soon as there is one, and when its class comes
// late. Its event comes once, and not every 15 s. The claim that waits for a default class requests
// more than the volume has: without a class it would take any volume too.
func TestNewVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, nothing, aClaim("c", "1Gi"), aClaim("d", "1Gi", inClass("fast")),
			aClaim("e", "2Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }))
		time.Sleep(4 * time.Minute)
		if got := messages(t, c, "c"); !slices.Equal(got, []string{"FailedBinding"}) {
			t.Errorf("events %v", got)
		}
		before := time.Now()
		if _, err := c.Client.CoreV1().PersistentVolumes().Create(t.Context(),
			aVolume("v", "1Gi", volumeIn(corev1.VolumePending)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, c, "c", corev1.ClaimBound)
		class := aClass("fast", "example.com/csi", storagev1.VolumeBindingImmediate)
		class.Annotations = map[string]string{defaultClass: "true"}
		if _, err := c.Client.StorageV1().StorageClasses().Create(t.Context(), class,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"d", "e"} {
			controllertest.Eventually(t, name+" is told to the provisioner", func() bool {
				return claimIs(t, c, name).Annotations[storage.AnnStorageProvisioner] == "example.com/csi"
			})
		}
		if passed := time.Since(before); passed >= resync {
			t.Errorf("it took until the next resync: %v", passed)
		}
	})
}

// TestPodsThatWait: the claim says which pod it waits for, within one resync.
func TestPodsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, nothing, aClaim("c", "1Gi", inClass("late")),
			aClass("late", "example.com/csi", storagev1.VolumeBindingWaitForFirstConsumer))
		time.Sleep(time.Second)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{
				{Name: "v",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
		if _, err := c.Client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(resync + time.Second)
		if got := messages(t, c, "c"); !slices.Equal(got, []string{"WaitForFirstConsumer", "WaitForPodScheduled"}) {
			t.Errorf("events %v", got)
		}
	})
}

// TestDeletionOnHost: the directory goes before the volume; as long as it cannot go the volume
// stays.
func TestDeletionOnHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deleted []string
		full := errors.New("device or resource busy")
		c := start(t, func(path string) error { deleted = append(deleted, path); return full },
			aVolume("v", "1Gi", claimedBy("c", "uid-c"), volumeIn(corev1.VolumeBound),
				reclaim(corev1.PersistentVolumeReclaimDelete)))
		time.Sleep(time.Second)
		if v := volumeIs(t, c, "v"); v.Status.Phase != corev1.VolumeFailed || v.Status.Message != full.Error() {
			t.Errorf("the volume: %+v", v.Status)
		}
		full = nil
		controllertest.Eventually(t, "the volume goes", func() bool {
			_, err := c.Client.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		synctest.Wait()
		if !slices.Contains(deleted, "/tmp/v") || len(slices.Compact(deleted)) != 1 {
			t.Errorf("deleted: %v", deleted)
		}
	})
}

// TestClaimThatIsNotSeenYet: a volume is not released when the informer has not shown its new claim
// yet.
func TestClaimThatIsNotSeenYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			aVolume("v", "1Gi", claimedBy("c", "uid-c"), volumeIn(corev1.VolumeBound),
				reclaim(corev1.PersistentVolumeReclaimDelete)))
		other := controllertest.New(t, aClaim("c", "1Gi"))
		ctrl, err := New(Config{Informers: c.Informers, RemoveAll: nothing})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, claimsOf{client, other.Client})
		})
		time.Sleep(time.Minute)
		if v := volumeIs(t, c, "v"); v.Status.Phase != corev1.VolumeBound {
			t.Errorf("the volume is %s", v.Status.Phase)
		}
	})
}

// TestVolumeThatIsNotSeenYet: a claim is not lost because the informer of volumes is slower than
// that of claims.
func TestVolumeThatIsNotSeenYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, aClaim("c", "1Gi", boundTo("v")))
		other := controllertest.New(t, aVolume("v", "1Gi", claimedBy("c", "uid-c"), volumeIn(corev1.VolumeBound)))
		ctrl, err := New(Config{Informers: c.Informers, RemoveAll: nothing})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, volumesOf{client, other.Client})
		})
		time.Sleep(time.Minute)
		if claim := claimIs(t, c, "c"); claim.Status.Phase != corev1.ClaimBound {
			t.Errorf("the claim is %s", claim.Status.Phase)
		}
		if err := other.Client.CoreV1().PersistentVolumes().Delete(t.Context(), "v",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		claim := claimIs(t, c, "c")
		claim.Labels = map[string]string{"look": "again"}
		if _, err := c.Client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, c, "c", corev1.ClaimLost)
	})
}

// TestSchedulersChoice: the binder completes the scheduler's choice.
func TestSchedulersChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, nothing, aClaim("c", "1Gi", inClass("late")), aVolume("v", "1Gi", ofStorageClass("late")),
			aClass("late", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer))
		time.Sleep(time.Minute)
		claim := claimIs(t, c, "c")
		if claim.Spec.VolumeName != "" || claim.UID != types.UID("uid-c") {
			t.Fatalf("the claim: %+v", claim)
		}
		chosen, _, err := storage.GetBindVolumeToClaim(volumeIs(t, c, "v"), claim)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client.CoreV1().PersistentVolumes().Update(t.Context(), chosen,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, c, "c", corev1.ClaimBound)
	})
}
