package cronoq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// How connections are made: keepalive, backoff and TLS settings go into each the same way, and the
// token into the metadata of its calls. Decides nothing about when and where.

// shardEndpointKey names the metadata in which a server says who serves a pool.
const shardEndpointKey = "cronoq-shard-endpoint"

// dial returns a new connection; nothing is sent before its first call.
func dial(options connectOptions, to endpoint) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if to.isEncrypted() {
		transport = fileCredentials{files: options.tls}
	}
	// Names are resolved by the dialer, at each connection: a server may have moved.
	return grpc.NewClient("passthrough:///"+to.target(),
		grpc.WithTransportCredentials(transport),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's jitter goes both ways, here by a half, and must not pass the bound.
			Backoff: backoff.Config{
				BaseDelay: options.backoff.Initial, Multiplier: 2, Jitter: 0.5,
				MaxDelay: options.backoff.Maximum * 2 / 3,
			},
			// The name is gRPC's; it bounds one attempt to connect (RR-08).
			MinConnectTimeout: options.connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                options.keepalive.Interval,
			Timeout:             options.keepalive.Timeout,
			PermitWithoutStream: true,
		}),
		// The server bounds what it sends; a limit here would turn its larger one into a break.
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	)
}

// withToken returns a context whose calls carry the token.
func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// fileCredentials is TLS whose files are read for each connection (RR-20).
type fileCredentials struct{ files *TLSOptions }

// ClientHandshake reads the files and makes the handshake.
func (c fileCredentials) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	config, err := readTLS(c.files)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake is what a client never does.
func (c fileCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("these credentials are a client's")
}

// Info says that this is TLS.
func (c fileCredentials) Info() credentials.ProtocolInfo { return credentials.NewTLS(nil).Info() }

// Clone returns the same: nothing in it changes.
func (c fileCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName is part of the interface and refused: names come from endpoints.
func (c fileCredentials) OverrideServerName(string) error {
	return fmt.Errorf("the server name is the endpoint's")
}

func readTLS(files *TLSOptions) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if files == nil {
		return config, nil
	}
	if files.CA != "" {
		trusted, err := os.ReadFile(files.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(trusted) {
			return nil, fmt.Errorf("tls: %s holds no certificate", files.CA)
		}
	}
	if files.Cert != "" {
		own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}
