"""A codec in one file: uploads are 8-bit integers times a step for each row; broadcasts stay float32."""

from fkgsec import ENTITIES, Recipe
from fkgsec.errors import RunError
from fkgsec.exchange import Codec, Upload
from fkgsec.exchange.codec import ClientCodec, Contribution, ServerCodec
from fkgsec.federation.messages import SERVER, QuantisedRows


class EightBitClient(ClientCodec):
    def encode(self, round, rows):
        self.steps = (rows.abs().amax(1) / 127).clamp_min(1e-9)
        self.levels = (rows / self.steps[:, None]).round().long()
        return Contribution(self.steps > 0, self.levels * self.steps[:, None])  # of all rows

    def pack(self, round, party, table, contribution):
        return QuantisedRows.pack(round, party, SERVER, table, self.levels, self.steps, bits=8)


class EightBitServer(ServerCodec):
    def accept(self, round, message):
        if not isinstance(message, QuantisedRows):
            raise RunError(f"{message.sender} uploaded {message.label}; quantised-rows expected")
        places = self.shared.places(message.sender, message.num_rows)
        return Upload(places, message.rows(), self.shared.weights[message.sender])


EIGHT_BIT = Codec(EightBitClient, EightBitServer, whole=True)
FEDE_8BIT = Recipe("fede-8bit", ENTITIES, "this file", codec="eight-bit")
