package csi

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// callTimeout bounds a driver's call for one volume.
const callTimeout = 2 * time.Minute

// capability is a capability of a driver's node service.
type capability = csipb.NodeServiceCapability_RPC_Type

// session is a connection to a driver for one operation. Each operation makes a new one, because an
// earlier instance of the driver may have left its socket behind.
type session struct {
	csipb.NodeClient
	conn         *grpc.ClientConn
	capabilities map[capability]bool
}

// open connects to a driver and reads its capabilities.
func (p *Plugin) open(ctx context.Context, driver string) (*session, error) {
	d, err := p.drivers.get(driver)
	if err != nil {
		return nil, err
	}
	s, err := p.dial(driver, d.endpoint)
	if err != nil {
		return nil, err
	}
	answer, err := s.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("NodeGetCapabilities of driver %s: %w", driver, err)
	}
	s.capabilities = map[capability]bool{}
	for _, c := range answer.Capabilities {
		if rpc := c.GetRpc(); rpc != nil {
			s.capabilities[rpc.Type] = true
		}
	}
	return s, nil
}

// dial connects to a driver that need not be registered.
func (p *Plugin) dial(driver, endpoint string) (*session, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithAuthority("localhost"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
		grpc.WithChainUnaryInterceptor(p.metrics.interceptor(driver)))
	if err != nil {
		return nil, fmt.Errorf("connect to driver %s at %s: %w", driver, path, err)
	}
	return &session{NodeClient: csipb.NewNodeClient(conn), conn: conn}, nil
}

func (s *session) close() { _ = s.conn.Close() } // nothing is written any more

func (s *session) can(c capability) bool { return s.capabilities[c] }

// final reports whether an error of a driver means that the driver has stopped its work for the
// volume. After any other error it may still work, and the volume may be there.
func final(err error) bool {
	if err == nil {
		return false
	}
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, // the caller did not wait for the answer
		codes.Unavailable,       // the connection was lost
		codes.ResourceExhausted, // an earlier call may be under way
		codes.Aborted:           // one is
		return false
	}
	return true
}

// capabilityOf returns the CSI capability for a use of a volume.
func (s *session) capabilityOf(how use) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: s.accessMode(how.mode)}}
	if how.block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return c
	}
	m := &csipb.VolumeCapability_MountVolume{FsType: how.fsType, MountFlags: how.options}
	if how.group != nil && s.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		m.VolumeMountGroup = fmt.Sprint(*how.group)
	}
	c.AccessType = &csipb.VolumeCapability_Mount{Mount: m}
	return c
}

// accessMode translates an access mode. A driver that does not distinguish one writer of a node
// from several gets the older mode.
func (s *session) accessMode(mode v1.PersistentVolumeAccessMode) csipb.VolumeCapability_AccessMode_Mode {
	tells := s.can(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch {
	case mode == v1.ReadWriteOnce && tells:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && tells:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce || mode == v1.ReadWriteOncePod:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case mode == v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}
