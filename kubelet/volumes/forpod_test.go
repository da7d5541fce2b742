package volumes

import (
	"io/fs"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Tokens and certificates of a pod are for its user and its group.
func TestFilesForPodOnly(t *testing.T) {
	as := func(user *int64) v1.Container {
		return v1.Container{SecurityContext: &v1.SecurityContext{RunAsUser: user}}
	}
	for name, c := range map[string]struct {
		user, group *int64
		containers  []v1.Container
		owner       *int64
		mode        fs.FileMode
	}{
		"anyone":          {nil, nil, []v1.Container{{}}, nil, 0o644},
		"the pod's user":  {ptr.To[int64](1000), nil, []v1.Container{{}}, ptr.To[int64](1000), 0o600},
		"the pod's group": {nil, ptr.To[int64](2000), []v1.Container{{}}, nil, 0o600},
		"both": {ptr.To[int64](1000), ptr.To[int64](2000), []v1.Container{{}, {}},
			ptr.To[int64](1000), 0o600},
		"the containers' user": {nil, nil, []v1.Container{as(ptr.To[int64](5)), as(ptr.To[int64](5))},
			ptr.To[int64](5), 0o600},
		"two users": {nil, nil, []v1.Container{as(ptr.To[int64](5)), as(ptr.To[int64](6))}, nil,
			0o644},
		"two users, one group": {nil, ptr.To[int64](2000),
			[]v1.Container{as(ptr.To[int64](5)), as(ptr.To[int64](6))}, nil, 0o600},
		"one container of any user": {nil, nil, []v1.Container{as(ptr.To[int64](5)), {}}, nil, 0o644},
		"one container of another": {ptr.To[int64](5), ptr.To[int64](7), []v1.Container{as(ptr.To[int64](6)), {}},
			nil, 0o600},
		"root, who is a user as well": {ptr.To[int64](0), nil, []v1.Container{{}}, ptr.To[int64](0), 0o600},
	} {
		pod := &v1.Pod{
			Spec: v1.PodSpec{Containers: c.containers,
				SecurityContext: &v1.PodSecurityContext{RunAsUser: c.user, FSGroup: c.group}}}
		got := forPod(pod, nil, 0o644)
		if !ptr.Equal(got.Owner, c.owner) || got.Mode != c.mode {
			t.Errorf("%s: owner %v, mode %o; want %v, %o", name, ptr.Deref(got.Owner, -1), got.Mode,
				ptr.Deref(c.owner, -1), c.mode)
		}
	}
}
